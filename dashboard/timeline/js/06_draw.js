// Draws what the view shows. Events narrower than a pixel share a column, whose strength is how busy it was.

const DENSE = 15; // events a pixel from which sums made beforehand are drawn instead of the events

class Painter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = `${height}px`;
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // Returns how many events were drawn one by one, and how many share how many columns.
  draw(state) {
    const { model, view, layout, theme } = state, c = this.context;
    if (this.hatchColour !== theme.colours.exposed) this.hatch = hatch(c, theme.colours.exposed);
    this.hatchColour = theme.colours.exposed;
    this.counts = { drawn: 0, merged: 0, columns: 0, shares: false };
    c.clearRect(0, 0, layout.left + layout.width, layout.height);
    c.textBaseline = "middle";
    this.scale = layout.width / view.span;
    this.drawAxis(state);
    for (const place of layout.sides) this.drawSide(place, state);
    for (const place of layout.lanes) this.drawLane(place, state);
    this.drawLabels(state);
    this.drawStrip(state);
    this.drawMarks(state);
    return this.counts;
  }

  x(time, state) {
    return state.layout.left + (time - state.view.from) * this.scale;
  }

  font(theme, size = 12, weight = "") {
    this.context.font = `${weight} ${size}px ${theme.font}`.trim();
  }

  inside(state, top, height, paint) {
    const c = this.context;
    c.save();
    c.beginPath();
    c.rect(state.layout.left, top, state.layout.width, height);
    c.clip();
    paint(c);
    c.restore();
  }

  drawAxis(state) {
    const { view, layout, theme } = state, c = this.context;
    const step = niceStep(view.span, layout.width, 110), first = Math.ceil(view.from / step) * step;
    this.font(theme, 11);
    c.textAlign = "center";
    for (let i = 0, time = first; time <= view.to; i++, time = first + i * step) {
      const x = Math.round(this.x(time, state)) + 0.5, zero = Math.abs(time) < step / 2;
      c.strokeStyle = theme.text;
      c.globalAlpha = zero ? 0.5 : 0.1;
      c.beginPath();
      c.moveTo(x, AXIS_HEIGHT - 5);
      c.lineTo(x, layout.strip.top - STRIP_GAP);
      c.stroke();
      c.globalAlpha = 0.75;
      c.fillStyle = theme.text;
      if (x > layout.left + 4 && x < layout.left + layout.width - 20) c.fillText(zero ? "0" : formatTick(time, step), x, 10);
    }
    c.globalAlpha = 1;
  }

  drawSide(place, state) {
    const { side, top, bottom } = place, { layout, theme, view } = state, c = this.context;
    c.fillStyle = theme.panel;
    c.globalAlpha = 0.55;
    c.fillRect(0, top, layout.left + layout.width, bottom - top);
    c.globalAlpha = 1;
    this.inside(state, top, bottom - top, () => {
      this.font(theme, 11);
      c.textAlign = "left";
      let free = -Infinity;
      side.ubatches.forEach(([number, phase, tokens, , start, end], i) => {
        const from = this.x(start - side.offset, state), to = this.x(end - side.offset, state);
        if (to < layout.left || from > layout.left + layout.width || to - from < 3) return;
        c.fillStyle = theme.text;
        c.globalAlpha = i % 2 ? 0.03 : 0.075;
        c.fillRect(from, top, to - from, bottom - top);
        const text = phase === "decode" ? `decode ${number}` : `ubatch ${number}${tokens ? ` · ${plural(tokens, "token")}` : ""}`;
        const at = Math.max(from, layout.left) + 5;
        c.globalAlpha = 0.75;
        if (at > free && at + c.measureText(text).width + 4 < to) {
          c.fillText(text, at, top + TITLE_HEIGHT / 2);
          free = at + c.measureText(text).width;
        }
        c.globalAlpha = 1;
      });
    });
  }

  drawLane(place, state) {
    const { lane, side, y, height } = place;
    this.inside(state, y - 1, height + 2, () => {
      const { from, to } = state.view, window = side.window.map((time) => time - side.offset);
      if (lane.events < lane.all_events) this.drawShares(place, state, from, Math.min(to, window[0]));
      if (lane.events < lane.all_events) this.drawShares(place, state, Math.max(from, window[1]), to);
      const bars = this.drawEvents(place, state);
      if (lane.exposed) this.drawExposed(place, state);
      if (height >= LANE_HEIGHT) this.drawNames(place, state, bars);
    });
  }

  drawEvents({ lane, side, y, height }, state) {
    const { view, layout, matches, matchedKinds } = state;
    const from = view.from + side.offset, to = view.to + side.offset, n = lane.events, scale = this.scale;
    const covered = new Float32Array(layout.width + 2), faded = new Float32Array(layout.width + 2);
    const wide = [], kindFades = matchedKinds && !matchedKinds.has(lane.category);
    const first = firstAbove(lane.latest, from, true), inView = firstAbove(lane.start, to, true) - first;
    // Many bins a pixel, so that their edges and those of the columns need not agree.
    if (!matches && inView > DENSE * layout.width && coverage(lane).width * scale < 1 / 6) {
      this.counts.merged += inView;
      sumBins(coverage(lane), from, scale, covered);
      this.paintColumns(covered, lane, y, height, state, kindFades ? 0.18 : 1);
      return [];
    }
    let i = first;
    for (; i < n && lane.start[i] < to; i++) {
      if (lane.end[i] < from) continue;
      const x = (lane.start[i] - from) * scale, width = (lane.end[i] - lane.start[i]) * scale;
      if (width >= 1.5) {
        wide.push(i);
        continue;
      }
      const column = x > 0 ? x | 0 : 0, fades = kindFades || (matches && !matches[lane.signature[i]]);
      (fades ? faded : covered)[column] += Math.max(width, 0.08);
      this.counts.merged++;
    }
    this.paintColumns(faded, lane, y, height, state, 0.18);
    this.paintColumns(covered, lane, y, height, state, 1);
    this.paintBars(wide, lane, side, y, height, state, kindFades);
    this.counts.drawn += wide.length;
    return kindFades ? [] : wide;
  }

  paintColumns(columns, lane, y, height, state, strength) {
    const c = this.context;
    c.fillStyle = state.theme.colours[lane.category];
    for (let x = 0; x < columns.length; x++) {
      if (columns[x] === 0) continue;
      c.globalAlpha = strength * Math.min(1, 0.3 + 0.7 * columns[x]);
      c.fillRect(state.layout.left + x, y, 1, height);
      this.counts.columns++;
    }
    c.globalAlpha = 1;
  }

  paintBars(rows, lane, side, y, height, state, kindFades) {
    const { model, view, layout, theme, matches } = state, c = this.context, layers = model.columns.of_layer;
    const from = view.from + side.offset;
    c.fillStyle = theme.colours[lane.category];
    for (const i of rows) {
      const x = Math.max((lane.start[i] - from) * this.scale, -5), right = Math.min((lane.end[i] - from) * this.scale, layout.width + 5);
      const fades = kindFades || (matches && !matches[lane.signature[i]]);
      // Neighbouring layers differ in strength, so that one sees where a layer ends.
      c.globalAlpha = fades ? 0.15 : layers[lane.signature[i]] % 2 ? 0.72 : 0.95;
      c.fillRect(layout.left + x, y, Math.max(right - x - (right - x > 4 ? 0.7 : 0), 1), height);
    }
    c.globalAlpha = 1;
  }

  // Above the hatching of exposed copies, there on a ground of the bar's colour.
  drawNames({ lane, side, y, height }, state, rows) {
    const { model, view, layout, theme, matches } = state, c = this.context;
    const from = view.from + side.offset, ink = theme.colours.on[lane.category] ?? "#000";
    this.font(theme, 11);
    c.textAlign = "left";
    for (const i of rows) {
      const x = Math.max((lane.start[i] - from) * this.scale, 0), room = Math.min((lane.end[i] - from) * this.scale, layout.width) - x - 8;
      if (room < 18 || (matches && !matches[lane.signature[i]])) continue;
      const whole = barText(describeEvent(model, lane.first + i)), fits = Math.floor(room / 5.8);
      if (fits < Math.min(whole.length, 4)) continue;
      const text = whole.length > fits ? `${whole.slice(0, fits - 1)}…` : whole, left = layout.left + x + 4, middle = y + height / 2 + 0.5;
      if (lane.exposed) {
        c.fillStyle = theme.colours[lane.category];
        c.fillRect(left - 2, middle - 8, c.measureText(text).width + 4, 15);
      }
      c.fillStyle = ink;
      c.fillText(text, left, middle);
    }
  }

  drawExposed({ lane, side, y, height }, state) {
    const { view, layout, theme } = state, c = this.context, spans = lane.exposedSpans;
    const from = view.from + side.offset, to = view.to + side.offset;
    const narrow = new Float32Array(layout.width + 2);
    for (let i = firstAbove(spans.end, from); i < spans.start.length && spans.start[i] < to; i++) {
      const x = (spans.start[i] - from) * this.scale, right = (spans.end[i] - from) * this.scale;
      if (right - x < 1.5) {
        narrow[x > 0 ? x | 0 : 0] += right - x;
        continue;
      }
      const left = layout.left + Math.max(x, -3), width = Math.min(right, layout.width + 3) - Math.max(x, -3);
      // Hollow against the solid bars of hidden copies.
      c.fillStyle = theme.background;
      c.globalAlpha = 0.82;
      c.fillRect(left, y, width, height);
      c.globalAlpha = 1;
      c.fillStyle = this.hatch;
      c.fillRect(left, y, width, height);
      c.fillStyle = theme.colours.exposed;
      c.fillRect(left, y + height - 3, width, 3);
    }
    c.fillStyle = theme.colours.exposed;
    for (let x = 0; x < narrow.length; x++) {
      if (narrow[x] === 0) continue;
      c.globalAlpha = Math.min(1, 0.35 + 0.65 * narrow[x]);
      c.fillRect(layout.left + x, y + height - 3, 1, 3);
    }
    c.globalAlpha = 1;
  }

  // Where events were not sent: how busy the lane was in each bin.
  drawShares({ lane, side, y, height }, state, from, to) {
    if (to <= from) return;
    const { model, theme } = state, c = this.context, edges = model.header.extent;
    const bin = (edges[1] - edges[0]) / lane.busyShare.length;
    const first = Math.max(0, Math.floor((from + side.offset - edges[0]) / bin));
    const last = Math.min(lane.busyShare.length, Math.ceil((to + side.offset - edges[0]) / bin));
    this.counts.shares = true;
    for (let i = first; i < last; i++) {
      if (!lane.busyShare[i]) continue;
      const x = this.x(edges[0] + i * bin - side.offset, state);
      c.globalAlpha = 0.1 + (0.5 * lane.busyShare[i]) / 255;
      c.fillStyle = theme.colours[lane.category];
      c.fillRect(x, y, bin * this.scale + 0.4, height);
      c.globalAlpha = lane.exposedShare[i] / 255;
      c.fillStyle = theme.colours.exposed;
      c.fillRect(x, y + height - 3, bin * this.scale + 0.4, 3);
    }
    c.globalAlpha = 1;
  }
}

const COVERAGE_BINS = 1 << 15;

// How much of each of many equal bins a lane's events cover, summed once; they overlap only where streams share a lane.
function coverage(lane) {
  if (lane.coverage) return lane.coverage;
  const from = lane.start[0], to = lane.latest[lane.events - 1];
  const width = (to - from) / COVERAGE_BINS || 1, sums = new Float32Array(COVERAGE_BINS + 1);
  for (let i = 0; i < lane.events; i++) {
    const start = (lane.start[i] - from) / width, end = (lane.end[i] - from) / width, last = Math.min(end | 0, COVERAGE_BINS);
    let bin = start | 0;
    if (bin === last) sums[bin] += end - start;
    else {
      sums[bin] += bin + 1 - start;
      while (++bin < last) sums[bin] += 1;
      sums[last] += end - last;
    }
  }
  lane.coverage = { from, width, sums };
  return lane.coverage;
}

// Adds the bins up into pixel columns; `from` is the time at the first column's left edge.
function sumBins({ from: origin, width, sums }, from, scale, columns) {
  const step = width * scale, shift = (origin - from) * scale;
  const first = Math.max(0, Math.floor(-shift / step)), last = Math.min(sums.length, Math.ceil((columns.length - shift) / step));
  for (let bin = first; bin < last; bin++) {
    if (sums[bin] === 0) continue;
    const column = (shift + bin * step) | 0;
    if (column >= 0 && column < columns.length) columns[column] += sums[bin] * step;
  }
}
