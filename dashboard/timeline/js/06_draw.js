// Draws what the view shows. Narrow events share columns, as high as their share of it that was busy: what is drawn has
// the area of the busy time at every zoom, exposed copy at the foot of each column.

const DENSE = 15; // events a pixel from which no event is looked at on its own
const WIDE = 3; // pixels from which an event has a bar of its own
const STRONG = 0.95, WEAK = 0.72, FADED = 0.18;

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
    const { lane, side, y, height } = place, { model, view, layout } = state;
    const share = (spans, name) => columnShares(lane, side, model.header.extent, spans, name, view.from + side.offset, this.scale, layout.width);
    this.inside(state, y - 1, height + 2, () => {
      const isWhole = lane.events === lane.all_events;
      this.counts.shares ||= !isWhole && (view.from + side.offset < side.window[0] || view.to + side.offset > side.window[1]);
      const bars = this.drawEvents(place, state, share(busySpans(lane), "busyShare"));
      if (lane.exposed || !isWhole) this.drawExposed(place, state, share(lane.exposedSpans, "exposedShare"));
      if (height >= LANE_HEIGHT) this.drawNames(place, state, bars);
    });
  }

  // Bars of events that are wide enough, in whole columns; every other column as high as its busy share.
  drawEvents({ lane, side, y, height }, state, shares) {
    const { view, layout, matches, matchedKinds } = state;
    const from = view.from + side.offset, to = view.to + side.offset, scale = this.scale;
    const wide = [], kindFades = matchedKinds && !matchedKinds.has(lane.category), hasBar = new Uint8Array(layout.width);
    const matched = new Float32Array(layout.width);
    const first = firstAbove(lane.latest, from, true), last = firstAbove(lane.start, to, true);
    if (!matches && last - first > DENSE * layout.width) this.counts.merged += last - first;
    else {
      for (let i = first; i < last; i++) {
        if (lane.end[i] < from) continue;
        const x = (lane.start[i] - from) * scale, right = (lane.end[i] - from) * scale;
        if (right - x >= WIDE) {
          wide.push(i);
          hasBar.fill(1, Math.max(Math.ceil(x), 0), Math.max(Math.floor(right), 0));
          continue;
        }
        if (matches && matches[lane.signature[i]]) addToColumns(matched, x, right);
        this.counts.merged++;
      }
    }
    this.paintColumns(shares, hasBar, lane, y, height, state, kindFades || matches ? FADED : STRONG);
    if (matches && !kindFades) this.paintColumns(matched, hasBar, lane, y, height, state, STRONG);
    this.paintBars(wide, lane, side, y, height, state, kindFades);
    this.counts.drawn += wide.length;
    return kindFades ? [] : wide;
  }

  paintColumns(shares, hasBar, lane, y, height, state, strength) {
    const c = this.context;
    c.fillStyle = state.theme.colours[lane.category];
    c.globalAlpha = strength;
    for (let x = 0; x < shares.length; x++) {
      if (shares[x] === 0 || hasBar[x]) continue;
      const tall = height * Math.min(1, shares[x]);
      c.fillRect(state.layout.left + x, y + height - tall, 1, tall);
      this.counts.columns++;
    }
    c.globalAlpha = 1;
  }

  paintBars(rows, lane, side, y, height, state, kindFades) {
    const { model, view, layout, theme, matches } = state, c = this.context, layers = model.columns.of_layer;
    const from = view.from + side.offset;
    c.fillStyle = theme.colours[lane.category];
    for (const i of rows) {
      const x = Math.max(Math.ceil((lane.start[i] - from) * this.scale), 0);
      const right = Math.min(Math.floor((lane.end[i] - from) * this.scale), layout.width);
      const fades = kindFades || (matches && !matches[lane.signature[i]]);
      // Neighbouring layers differ in strength, so that one sees where a layer ends.
      c.globalAlpha = fades ? FADED : layers[lane.signature[i]] % 2 ? WEAK : STRONG;
      c.fillRect(layout.left + x, y, right - x, height);
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

  // Wide stretches hollow and hatched against the solid bars of hidden copies; elsewhere the exposed share of a column.
  drawExposed({ lane, side, y, height }, state, shares) {
    const { view, layout, theme } = state, c = this.context, spans = lane.exposedSpans;
    const from = view.from + side.offset, to = view.to + side.offset, isHollow = new Uint8Array(layout.width);
    for (let i = firstAbove(spans.end, from); i < spans.start.length && spans.start[i] < to; i++) {
      const x = Math.max(Math.ceil((spans.start[i] - from) * this.scale), 0);
      const right = Math.min(Math.floor((spans.end[i] - from) * this.scale), layout.width);
      if (right - x < WIDE - 1) continue;
      isHollow.fill(1, x, right);
      const left = layout.left + x, width = right - x;
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
    for (let x = 0; x < shares.length; x++) {
      if (shares[x] === 0 || isHollow[x]) continue;
      c.fillRect(layout.left + x, y + height * (1 - shares[x]), 1, height * shares[x]);
    }
  }
}

// Adds an event's part of each column that it touches.
function addToColumns(columns, x, right) {
  for (let column = Math.max(Math.floor(x), 0); column < Math.min(right, columns.length); column++) {
    columns[column] += Math.min(right, column + 1) - Math.max(x, column);
  }
}
