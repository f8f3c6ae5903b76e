"use strict";
// Draws the timeline of an exported report. Columns are typed arrays; a lane's slices are in order of their start,
// so that a redraw looks only at what the window shows and draws at most one rectangle a pixel and lane.
(() => {
  const holder = document.getElementById("timeline");
  if (!holder) return;
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = holder.querySelector("canvas"), tip = document.getElementById("tip"), pen = canvas.getContext("2d");
  const TITLE = 20, LANE = 18, AXIS = 22, LABEL = 210, MERGED = 0xffff;
  const COLORS = {  // Okabe and Ito's, told apart by all kinds of colour vision
    h2d: "#0072b2", d2h: "#56b4e9", d2d: "#999999", compute: "#009e73", wait: "#e69f00", cpu_compute: "#cc79a7", api: "#b8a400",
  };
  const types = { start: Float64Array, length: Float64Array, lane: Uint16Array, name: Uint16Array, layer: Int16Array,
    bytes: Float32Array, count: Uint32Array };
  const unpack = (text, type) => new type(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

  let height = AXIS;
  const lanes = [];
  for (const track of data.tracks) {
    track.top = height;
    height += TITLE;
    const c = Object.fromEntries(Object.entries(types).map(([name, type]) => [name, unpack(track.columns[name], type)]));
    track.lanes.forEach((lane, i) => {
      lanes.push({ ...lane, track, c, top: height, rows: [] });
      lane.index = lanes.length - 1;
      height += LANE;
    });
    for (let row = 0; row < c.lane.length; row++) lanes[track.lanes[c.lane[row]].index].rows.push(row);
    height += 8;
  }
  for (const lane of lanes) {
    let latest = -Infinity;
    lane.latest = lane.rows.map((row) => (latest = Math.max(latest, lane.c.start[row] + lane.c.length[row])));
  }
  const whole = [0, data.last_ns - data.first_ns];
  let view = [...whole];

  const width = () => holder.clientWidth;
  const x_of = (t) => LABEL + ((t - view[0]) / (view[1] - view[0])) * (width() - LABEL);
  const t_of = (x) => view[0] + ((x - LABEL) / (width() - LABEL)) * (view[1] - view[0]);

  // the first position whose value is at least `wanted`
  function search(values, wanted, value_of = (v) => v) {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (value_of(values[middle]) < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  function time_text(ns) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([s]) => Math.abs(ns) >= s) || [1, "ns"];
    return `${Number((ns / size).toPrecision(4))} ${unit}`;
  }

  function draw_axis(style) {
    const step_of = (span) => { const p = 10 ** Math.floor(Math.log10(span / 5)); return [1, 2, 5, 10].map((m) => m * p).find((s) => span / s <= 8); };
    const step = step_of(view[1] - view[0]);
    pen.fillStyle = pen.strokeStyle = style.getPropertyValue("--dim");
    for (let t = Math.ceil((view[0] + data.first_ns) / step) * step - data.first_ns; t <= view[1]; t += step) {
      const x = Math.round(x_of(t)) + 0.5;
      pen.globalAlpha = 0.25;
      pen.beginPath(); pen.moveTo(x, AXIS - 6); pen.lineTo(x, height); pen.stroke();
      pen.globalAlpha = 1;
      pen.fillText(time_text(t + data.first_ns), x + 3, 13);
    }
  }

  function draw_lane(lane, style) {
    pen.fillStyle = style.getPropertyValue("--dim");
    if (lane.title) pen.fillText(lane.title, 8, lane.top + 13, LABEL - 12);
    pen.fillStyle = COLORS[lane.category];
    let drawn_to = -1;
    const first = search(lane.latest, view[0]);
    for (let i = first; i < lane.rows.length; i++) {
      const row = lane.rows[i], start = lane.c.start[row];
      if (start > view[1]) break;
      const left = Math.max(LABEL, x_of(start)), right = Math.min(width(), x_of(start + lane.c.length[row]));
      if (right < left || (right <= drawn_to && right - left < 1)) continue;
      pen.fillRect(left, lane.top + 2, Math.max(1, right - left - (right - left > 3 ? 1 : 0)), LANE - 4);
      drawn_to = Math.ceil(Math.max(right, left + 1));
    }
  }

  function draw() {
    const scale = window.devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    canvas.width = width() * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    draw_axis(style);
    for (const track of data.tracks) {
      pen.fillStyle = style.getPropertyValue("--fg");
      pen.fillText(track.title, 8, track.top + 14);
    }
    for (const lane of lanes) draw_lane(lane, style);
    holder.dataset.view = view.join(",");
  }

  function show(from, to) {
    const span = Math.min(Math.max(to - from, 50), whole[1]);
    const start = Math.min(Math.max(from, 0), whole[1] - span);
    view = [start, start + span];
    requestAnimationFrame(draw);
  }
  const zoom = (at, factor) => show(at - (at - view[0]) * factor, at + (view[1] - at) * factor);
  const pan = (share) => show(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));

  function slice_at(x, y) {
    const lane = lanes.find((l) => y >= l.top && y < l.top + LANE);
    if (!lane || x < LABEL) return null;
    const slack = (view[1] - view[0]) / (width() - LABEL), t = t_of(x);
    for (let i = search(lane.latest, t - slack); i < lane.rows.length; i++) {
      const row = lane.rows[i];
      if (lane.c.start[row] > t + slack) return null;
      if (lane.c.start[row] + lane.c.length[row] >= t - slack) return [lane, row];
    }
    return null;
  }

  function hover(event) {
    const found = slice_at(event.offsetX, event.offsetY);
    tip.hidden = !found;
    if (!found) return;
    const [lane, row] = found, c = lane.c, n_bytes = c.bytes[row];
    const lines = [c.name[row] === MERGED ? `${c.count[row]} events, drawn as one` : lane.track.names[c.name[row]]];
    lines.push(`${lane.category}, ${time_text(c.length[row])} at ${time_text(c.start[row] + data.first_ns)}`);
    if (c.layer[row] >= 0) lines.push(`layer ${c.layer[row]}`);
    if (n_bytes >= 0) lines.push(`${(n_bytes / 2 ** 20).toPrecision(4)} MiB, ${(n_bytes / c.length[row]).toPrecision(3)} GB/s`);
    tip.textContent = lines.join("\n");
    tip.style.left = `${Math.min(event.offsetX + 14, Math.max(0, width() - tip.offsetWidth - 8))}px`;
    tip.style.top = `${event.offsetY + 14}px`;
  }

  let dragged = null;
  canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoom(t_of(e.offsetX), e.deltaY < 0 ? 0.8 : 1.25); }, { passive: false });
  canvas.addEventListener("pointerdown", (e) => { dragged = e.offsetX; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("pointermove", (e) => {
    if (dragged === null) { hover(e); return; }
    pan((dragged - e.offsetX) / (width() - LABEL));
    dragged = e.offsetX;
  });
  canvas.addEventListener("dblclick", () => show(...whole));
  holder.addEventListener("keydown", (e) => {
    const middle = (view[0] + view[1]) / 2;
    const keys = { w: () => zoom(middle, 0.7), s: () => zoom(middle, 1.4), a: () => pan(-0.2), d: () => pan(0.2) };
    if (keys[e.key]) keys[e.key]();
  });
  window.addEventListener("resize", draw);
  draw();
})();
