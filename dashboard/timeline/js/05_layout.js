// Where everything goes, in CSS pixels: the axis, pinned lanes, each side with its lanes by process and device, and the
// overview strip at the foot. What is higher than the window scrolls between pinned lanes and strip.

const LABEL_WIDTH = 148, AXIS_HEIGHT = 26, TITLE_HEIGHT = 26, LANE_HEIGHT = 26, THIN_LANE = 14, LANE_GAP = 3;
const GROUP_HEIGHT = 20, ROW_HEIGHT = 16, MOST_STRETCH = 2.4, LEAST_STRETCH = 16 / 26, NARROW = 620;
const SIDE_GAP = 14, STRIP_HEIGHT = 40, STRIP_GAP = 12;

// `shown`: { hidden: categories, folded and pinned: keys, scroll: px, room: height of the window's rest }.
function layOut(model, shown, width) {
  const labelWidth = width < NARROW ? 92 : LABEL_WIDTH;
  const layout = { labelWidth, left: labelWidth, width: Math.max(50, width - labelWidth), lanes: [], sides: [], headers: [] };
  const natural = place(layout, model, shown, 1), rest = STRIP_GAP + STRIP_HEIGHT + 2;
  // The lanes take the room that there is, but for what keeps its height; before they scroll, they become as low as a name.
  const spare = shown.room - rest - natural.bottom, lanes = layout.lanes.reduce((sum, p) => sum + (isThin(p.lane) ? 0 : p.height), 0);
  const least = width < NARROW ? 1 : LEAST_STRETCH, stretch = lanes ? Math.min(Math.max(1 + spare / lanes, least), MOST_STRETCH) : 1;
  const placed = stretch === 1 ? natural : place(layout, model, shown, stretch);
  const scrolls = width >= NARROW && placed.bottom + rest > shown.room;
  layout.bodyTop = placed.bodyTop;
  layout.bodyBottom = scrolls ? shown.room - rest : placed.bottom;
  layout.mostScroll = placed.bottom - layout.bodyBottom;
  layout.strip = { top: layout.bodyBottom + STRIP_GAP, height: STRIP_HEIGHT };
  layout.height = layout.strip.top + STRIP_HEIGHT + 2;
  const up = Math.min(shown.scroll, layout.mostScroll);
  for (const one of [...layout.lanes, ...layout.headers]) if (!one.isPinned) one.y -= up;
  for (const one of layout.sides) [one.top, one.bottom] = [one.top - up, one.bottom - up];
  return layout;
}

function place(layout, model, { hidden, folded, pinned }, stretch) {
  Object.assign(layout, { lanes: [], sides: [], headers: [] });
  let y = AXIS_HEIGHT;
  const isShown = (lane) => !hidden.has(lane.category);
  const put = (lane, side, isPinned, inGroup) => {
    const height = laneHeight(lane, stretch);
    layout.lanes.push({ lane, side, y, height, isPinned, inGroup });
    y += height + LANE_GAP;
  };
  for (const side of model.sides) for (const lane of side.lanes) if (pinned.has(laneKey(lane)) && isShown(lane)) put(lane, side, true, false);
  if (layout.lanes.length) y += LANE_GAP;
  const bodyTop = y;
  for (const side of model.sides) {
    const top = y, groups = groupsOf(side), key = `${side.number}`, isFolded = folded.has(key);
    layout.headers.push({ kind: "side", key, side, y, height: TITLE_HEIGHT, isFolded, lanes: side.lanes });
    y += TITLE_HEIGHT;
    for (const group of isFolded ? [] : groups) {
      const lanes = group.lanes.filter((lane) => isShown(lane) && !pinned.has(laneKey(lane)));
      if (groups.length > 1) {
        layout.headers.push({ kind: "group", key: group.key, side, y, height: GROUP_HEIGHT, label: group.label, isFolded: folded.has(group.key), lanes: group.lanes });
        y += GROUP_HEIGHT;
        if (folded.has(group.key)) continue;
      }
      for (const lane of lanes) put(lane, side, false, groups.length > 1);
    }
    layout.sides.push({ side, top, bottom: y });
    y += SIDE_GAP;
  }
  return { bodyTop, bottom: y - SIDE_GAP };
}

// Lanes by process and device, the host's last; one group where no two devices or processes tell them apart.
function groupsOf(side) {
  const groups = devicesOf(side), lanes = groups.flatMap((group) => group.lanes);
  side.groups ??= groups.filter((group) => group.device !== null).length > 1 ? groups : [{ key: `${side.number}|all`, label: "", lanes }];
  return side.groups;
}

// A side's lanes by process and device, whether the drawing has them in groups or not.
function devicesOf(side) {
  const found = new Map(), several = new Set(side.lanes.map((lane) => lane.process)).size > 1;
  for (const lane of side.lanes) {
    const device = lane.device === null ? "host" : `GPU ${lane.device}`;
    const label = several && lane.process !== null ? `process ${lane.process} · ${device}` : device;
    if (!found.has(label)) found.set(label, { key: `${side.number}|${label}`, label, device: lane.device, lanes: [] });
    found.get(label).lanes.push(lane);
  }
  return [...found.values()].sort((a, b) => (a.device === null) - (b.device === null));
}

function laneKey(lane) {
  return [lane.side, lane.category, lane.process, lane.device, lane.stream].join("|");
}

function isThin(lane) {
  return lane.category === "wait" || lane.category === "api";
}

function laneHeight(lane, stretch) {
  const one = isThin(lane) ? THIN_LANE : Math.floor(LANE_HEIGHT * stretch), { count } = rowsOf(lane);
  return count > 1 ? Math.max(one, count * ROW_HEIGHT) : one;
}

// The header or the lane whose label is at a place; null beside the labels.
function labelAt(layout, x, y) {
  if (x >= layout.left) return null;
  const inBody = y >= layout.bodyTop && y < layout.bodyBottom, over = (one) => y >= one.y && y < one.y + one.height;
  const lane = laneAt(layout, y), header = inBody ? layout.headers.find(over) : null;
  return header ? { header } : lane ? { lane: lane.lane } : null;
}

// The lane's place at a height; null where there is none, or it is scrolled away.
function laneAt(layout, y) {
  const inBody = y >= layout.bodyTop && y < layout.bodyBottom;
  return layout.lanes.find((p) => (p.isPinned || inBody) && y >= p.y && y <= p.y + p.height) ?? null;
}
