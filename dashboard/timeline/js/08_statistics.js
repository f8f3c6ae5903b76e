// What a stretch of time holds: busy, hidden, exposed and idle time, bytes, speed and events by kind, A beside B.

// Total length of the union of several lists of spans inside [from, to).
function unionLength(lists, from, to) {
  let union = [];
  for (const spans of lists) union = mergeSpans(union, spansInside(spans, from, to));
  return union.reduce((sum, [start, end]) => sum + end - start, 0);
}

function spansInside(spans, from, to) {
  const found = [];
  for (let i = firstAbove(spans.end, from); i < spans.start.length && spans.start[i] < to; i++) {
    found.push([Math.max(spans.start[i], from), Math.min(spans.end[i], to)]);
  }
  return found;
}

// The union of two lists of spans that are each in order and do not overlap.
function mergeSpans(one, other) {
  if (!one.length || !other.length) return one.length ? one : other;
  const merged = [];
  for (let a = 0, b = 0; a < one.length || b < other.length; ) {
    const next = b >= other.length || (a < one.length && one[a][0] <= other[b][0]) ? one[a++] : other[b++], last = merged.at(-1);
    if (last && next[0] <= last[1]) last[1] = Math.max(last[1], next[1]);
    else merged.push([...next]);
  }
  return merged;
}

// Events that touch the stretch, and the bytes of their parts inside it (null where one does not say its bytes).
function countInside(model, lane, from, to) {
  const sizes = model.columns.of_bytes, first = firstAbove(lane.latest, from), last = firstAbove(lane.start, to, true);
  let count = 0, bytes = 0;
  for (let i = first; i < last; i++) {
    if (lane.end[i] <= from && lane.start[i] < from) continue;
    count++;
    const size = sizes[lane.signature[i]], length = lane.end[i] - lane.start[i];
    if (size < 0) bytes = NaN;
    else bytes += length ? (size * (Math.min(lane.end[i], to) - Math.max(lane.start[i], from))) / length : size;
  }
  return { count, bytes: Number.isNaN(bytes) ? null : bytes };
}

const COPIES = ["h2d", "d2h", "d2d"], ON_DEVICE = [...COPIES, "compute"];

// Rows of one side: { kind, figure, label (both), value, format }, the kinds of each device apart. The stretch is on the side's own clock.
function sideStatistics(model, side, from, to) {
  const rows = [], onDevices = side.lanes.filter((lane) => lane.device !== null);
  const several = new Set(onDevices.map((lane) => `${lane.process}|${lane.device}`)).size > 1;
  const begin = Math.max(from, side.extent[0]), end = Math.min(to, side.extent[1]);
  for (const { label: device, lanes } of devicesOf(side)) {
    const prefix = several ? `${device} · ` : "";
    const add = (name, figure, value, format) => {
      const kind = `${prefix}${name}`;
      rows.push({ kind, figure, label: figure ? `${kind}, ${figure}` : kind, value, format });
    };
    for (const category of Object.keys(model.header.categories)) {
      const mine = lanes.filter((lane) => lane.category === category), name = model.header.categories[category];
      if (!mine.length) continue;
      const busy = unionLength(mine.map(busySpans), begin, end), counts = mine.map((lane) => countInside(model, lane, begin, end));
      add(name, "events", counts.reduce((sum, one) => sum + one.count, 0), formatCount);
      add(name, "busy", busy, formatTime);
      if (category === "h2d") {
        const exposed = unionLength(mine.map((lane) => lane.exposedSpans), begin, end);
        add(name, "hidden", busy - exposed, formatTime);
        add(name, "exposed", exposed, formatTime);
      }
      if (!COPIES.includes(category)) continue;
      const bytes = counts.reduce((sum, one) => (one.bytes === null ? NaN : sum + one.bytes), 0);
      if (Number.isNaN(bytes)) continue;
      add(name, "bytes", bytes, formatBytes);
      if (busy) add(name, "speed while busy", bytes / busy, (rate) => `${trimmed(rate, 3)} GB/s`);
    }
    const atWork = lanes.filter((lane) => ON_DEVICE.includes(lane.category));
    if (atWork.length) add("idle", "", Math.max(end - begin, 0) - unionLength(atWork.map(busySpans), begin, end), formatTime);
  }
  return rows;
}

// The statistics as a table a kind, side by side, or nothing where no stretch is chosen.
function showStatistics(panel, model, span, makeArm) {
  panel.replaceChildren();
  panel.hidden = span === null;
  if (span === null) return;
  const [from, to] = [Math.min(...span), Math.max(...span)];
  panel.append(element("h3", "", `${formatTime(to - from, 4)} chosen, from ${formatTime(from, 5)} to ${formatTime(to, 5)}`));
  if (model.header.can_be_cut) panel.append(linkTo("Make this an arm", () => makeArm([from, to].map((time) => Math.round(time + model.sides[0].offset)))));
  const sides = model.sides.map((side) => sideStatistics(model, side, from + side.offset, to + side.offset)), tables = element("div", "tables");
  for (const kind of new Set(sides.flat().map((row) => row.kind))) tables.append(statisticsTable(model, kind, sides));
  panel.append(tables);
  if (model.sides.some((side) => isCutAway(side, from + side.offset, to + side.offset))) {
    panel.append(element("p", "hint", "Not all events of this stretch were sent: zoom in, and choose it again for exact figures."));
  }
}

function statisticsTable(model, kind, sides) {
  const table = element("table"), head = element("tr"), isPair = sides.length > 1;
  table.setAttribute("aria-label", kind);
  for (const title of [kind, ...(isPair ? model.sides.map((side, i) => `${"AB"[i]} ${side.title}`) : [""]), ...(isPair ? ["B / A"] : [])]) head.append(element("th", "", title));
  table.append(head);
  const mine = sides.map((rows) => new Map(rows.filter((row) => row.kind === kind).map((row) => [row.figure, row])));
  for (const figure of new Set(mine.flatMap((rows) => [...rows.keys()]))) table.append(statisticsRow(figure || "time", mine.map((rows) => rows.get(figure))));
  return table;
}

function statisticsRow(label, found) {
  const row = element("tr");
  row.append(element("th", "", label));
  for (const one of found) row.append(element("td", "", one ? one.format(one.value) : "–"));
  if (found.length > 1) {
    const [a, b] = found;
    row.append(element("td", "", a && b && a.value > 0 ? trimmed(b.value / a.value, 3) : "–"));
  }
  return row;
}

// Whether the browser lacks events of a side's stretch.
function isCutAway(side, from, to) {
  const isWhole = side.lanes.every((lane) => lane.events === lane.all_events);
  return !isWhole && (Math.max(from, side.extent[0]) < side.window[0] || Math.min(to, side.extent[1]) > side.window[1]);
}
