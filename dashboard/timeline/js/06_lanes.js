// Draws lanes. Narrow events share columns, as high as their share of it that was busy: what is drawn has the area of the
// busy time at every zoom, exposed copy at the foot of each column. Events that overlap have rows of their own.

const DENSE = 15; // events a pixel from which no event is looked at on its own
const WIDE = 3; // pixels from which an event has a bar of its own
const STRONG = 0.95, WEAK = 0.72, FADED = 0.18;

Object.assign(Painter.prototype, {
  drawLane(place, state) {
    const { lane, side, y, height } = place, { model, view, layout } = state;
    const share = (spans, name) => columnShares(lane, side, model.header.extent, spans, name, view.from + side.offset, this.scale, layout.width);
    this.inside(state, y - 1, height + 2, () => {
      const isWhole = lane.events === lane.all_events;
      this.counts.shares ||= !isWhole && (view.from + side.offset < side.window[0] || view.to + side.offset > side.window[1]);
      const { bars, exposedInRows } = this.drawEvents(place, state, share(busySpans(lane), "busyShare"));
      if (exposedInRows) this.drawExposedInRows(place, state, exposedInRows, bars);
      else if (lane.exposed || !isWhole) this.drawExposed(place, state, share(lane.exposedSpans, "exposedShare"), bars);
      if (!isThin(lane)) this.drawNames(place, state, bars);
    });
  },

  // Bars of events that are wide enough, in whole columns; every other column as high as its busy share. Returns the bars,
  // and where copies stand in rows how much of each column of each row is exposed.
  drawEvents(place, state, shares) {
    const { lane, side, y, height } = place, { view, layout } = state, from = view.from + side.offset, to = view.to + side.offset;
    const first = firstAbove(lane.latest, from, true), last = firstAbove(lane.start, to, true), isDense = last - first > DENSE * layout.width;
    const isFaded = fadesWhole(state, lane), strength = isFaded || state.matches ? FADED : STRONG;
    if (isDense && !state.matches) {
      this.counts.merged += last - first;
      this.paintColumns(shares, null, place, y, height, state, strength);
      return { bars: [], exposedInRows: null };
    }
    const { row, count } = rowsOf(lane), rows = isDense ? null : row, bars = [];
    const hasBar = new Uint8Array(layout.width), matched = new Float32Array(layout.width);
    const emptyRows = () => Array.from({ length: count }, () => new Float32Array(layout.width));
    const inRows = rows ? emptyRows() : null, exposedInRows = rows && lane.exposed ? emptyRows() : null;
    for (let i = first; i < last; i++) {
      if (lane.end[i] < from) continue;
      const x = (lane.start[i] - from) * this.scale, right = (lane.end[i] - from) * this.scale;
      const fits = !state.matches || state.matches[lane.signature[i]];
      if (exposedInRows && fits) this.addExposed(exposedInRows[rows[i]], lane, i, from);
      if (right - x >= WIDE) {
        bars.push(i);
        hasBar.fill(1, Math.max(Math.ceil(x), 0), Math.max(Math.floor(right), 0));
        continue;
      }
      if (rows && fits) addToColumns(inRows[rows[i]], x, right);
      else if (fits && state.matches) addToColumns(matched, x, right);
      this.counts.merged++;
    }
    if (rows) {
      if (state.matches) this.paintColumns(shares, hasBar, place, y, height, state, FADED);
      inRows.forEach((columns, at) => {
        const { top, tall } = rowAt(place, at);
        this.paintColumns(columns, null, place, top, tall, state, isFaded ? FADED : STRONG);
      });
    } else {
      this.paintColumns(shares, hasBar, place, y, height, state, strength);
      if (state.matches && !isFaded) this.paintColumns(matched, hasBar, place, y, height, state, STRONG);
    }
    this.paintBars(bars, place, state);
    this.counts.drawn += bars.length;
    return { bars: isFaded ? [] : bars, exposedInRows };
  },

  // Adds an event's exposed parts to the columns of its row.
  addExposed(columns, { start, end, exposedSpans: spans }, i, from) {
    for (let k = firstAbove(spans.end, start[i]); k < spans.start.length && spans.start[k] < end[i]; k++) {
      addToColumns(columns, (Math.max(spans.start[k], start[i]) - from) * this.scale, (Math.min(spans.end[k], end[i]) - from) * this.scale);
    }
  },

  paintColumns(shares, hasBar, { lane }, y, height, state, strength) {
    const c = this.context;
    c.fillStyle = state.theme.colours[lane.category];
    c.globalAlpha = strength;
    for (let x = 0; x < shares.length; x++) {
      if (shares[x] === 0 || hasBar?.[x]) continue;
      const tall = height * Math.min(1, shares[x]);
      c.fillRect(state.layout.left + x, y + height - tall, 1, tall);
      this.counts.columns++;
    }
    c.globalAlpha = 1;
  },

  // An event's whole columns, from the left edge of the lanes.
  barEdges(lane, side, i, state) {
    const from = state.view.from + side.offset;
    return [Math.max(Math.ceil((lane.start[i] - from) * this.scale), 0), Math.min(Math.floor((lane.end[i] - from) * this.scale), state.layout.width)];
  },

  paintBars(bars, place, state) {
    const { lane, side } = place, { model, layout, theme, matches } = state, c = this.context, layers = model.columns.of_layer;
    const isFaded = fadesWhole(state, lane);
    c.fillStyle = theme.colours[lane.category];
    for (const i of bars) {
      const [x, right] = this.barEdges(lane, side, i, state), { top, tall } = rowBox(place, i);
      // Neighbouring layers differ in strength, so that one sees where a layer ends.
      c.globalAlpha = isFaded || (matches && !matches[lane.signature[i]]) ? FADED : layers[lane.signature[i]] % 2 ? WEAK : STRONG;
      c.fillRect(layout.left + x, top, right - x, tall);
    }
    c.globalAlpha = 1;
  },

  // Above the hatching of exposed copies, there on a ground of the bar's colour. No name runs into the next one.
  drawNames(place, state, bars) {
    const { lane, side } = place, { model, layout, theme, matches } = state, c = this.context;
    const from = state.view.from + side.offset, ink = theme.colours.on[lane.category] ?? "#000", free = new Float64Array(MAX_ROWS).fill(-Infinity), { row } = rowsOf(lane);
    this.font(theme, 11);
    c.textAlign = "left";
    for (const i of bars) {
      const x = Math.max((lane.start[i] - from) * this.scale, 0), room = Math.min((lane.end[i] - from) * this.scale, layout.width) - x - 8;
      const { top, tall } = rowBox(place, i), at = row ? row[i] : 0;
      if (room < 18 || tall < 12 || x < free[at] || (matches && !matches[lane.signature[i]])) continue;
      const whole = barText(describeEvent(model, lane.first + i)), fits = Math.floor(room / 5.8);
      if (fits < Math.min(whole.length, 4)) continue;
      const text = whole.length > fits ? `${whole.slice(0, fits - 1)}…` : whole, left = layout.left + x + 4, middle = top + tall / 2 + 0.5;
      if (lane.exposed) {
        c.fillStyle = theme.colours[lane.category];
        c.fillRect(left - 2, middle - 7, c.measureText(text).width + 4, 14);
      }
      c.fillStyle = ink;
      c.fillText(text, left, middle);
      free[at] = x + 4 + c.measureText(text).width;
    }
  },

  // Wide stretches hollow and hatched against the solid bars of hidden copies; elsewhere the exposed share of a column. A
  // search fades it but on what it found.
  drawExposed(place, state, shares, bars) {
    const { lane, side, y, height } = place, { layout, theme } = state, c = this.context;
    const isHollow = new Uint8Array(layout.width), searched = state.matches !== null || fadesWhole(state, lane);
    const whole = (left, right) => {
      isHollow.fill(1, left, right);
      this.paintHollow(left, right, y, height, state, searched ? FADED : 1);
    };
    this.eachExposed(lane, side, state, 0, layout.width, whole);
    for (const i of state.matches ? bars : []) {
      if (!state.matches[lane.signature[i]]) continue;
      const [left, right] = this.barEdges(lane, side, i, state);
      this.eachExposed(lane, side, state, left, right, (a, b) => this.paintHollow(a, b, y, height, state, 1));
    }
    c.fillStyle = theme.colours.exposed;
    c.globalAlpha = searched ? FADED : 1;
    for (let x = 0; x < shares.length; x++) {
      if (shares[x] === 0 || isHollow[x]) continue;
      const tall = height * shares[x];
      c.fillRect(layout.left + x, y + height - tall, 1, tall);
    }
    c.globalAlpha = 1;
  },

  // The same of copies that overlap: each row is drawn like a lane.
  drawExposedInRows(place, state, exposedInRows, bars) {
    const { lane, side } = place, { layout, theme } = state, c = this.context, { row } = rowsOf(lane);
    const isHollow = exposedInRows.map(() => new Uint8Array(layout.width));
    for (const i of bars) {
      if (state.matches && !state.matches[lane.signature[i]]) continue;
      const [left, right] = this.barEdges(lane, side, i, state), { top, tall } = rowBox(place, i);
      this.eachExposed(lane, side, state, left, right, (a, b) => {
        isHollow[row[i]].fill(1, a, b);
        this.paintHollow(a, b, top, tall, state, 1);
      });
    }
    c.fillStyle = theme.colours.exposed;
    c.globalAlpha = fadesWhole(state, lane) ? FADED : 1;
    exposedInRows.forEach((columns, at) => {
      const box = rowAt(place, at);
      for (let x = 0; x < columns.length; x++) {
        if (columns[x] === 0 || isHollow[at][x]) continue;
        const tall = box.tall * Math.min(1, columns[x]);
        c.fillRect(layout.left + x, box.top + box.tall - tall, 1, tall);
      }
    });
    c.globalAlpha = 1;
  },

  // The exposed stretches of a lane between two columns that are wide enough to be hollow.
  eachExposed(lane, side, state, left, right, visit) {
    const spans = lane.exposedSpans, from = state.view.from + side.offset, last = from + right / this.scale;
    for (let i = firstAbove(spans.end, from + left / this.scale); i < spans.start.length && spans.start[i] < last; i++) {
      const a = Math.max(Math.ceil((spans.start[i] - from) * this.scale), left), b = Math.min(Math.floor((spans.end[i] - from) * this.scale), right);
      if (b - a >= WIDE - 1) visit(a, b);
    }
  },

  paintHollow(left, right, y, height, state, strength) {
    const { layout, theme } = state, c = this.context, at = layout.left + left, width = right - left;
    c.fillStyle = theme.background;
    c.globalAlpha = 0.82 * strength;
    c.fillRect(at, y, width, height);
    c.globalAlpha = strength;
    c.fillStyle = this.hatch;
    c.fillRect(at, y, width, height);
    c.fillStyle = theme.colours.exposed;
    c.fillRect(at, y + height - 3, width, 3);
    c.globalAlpha = 1;
  },
});

// Whether a search by kind found none of this lane's.
function fadesWhole({ matchedKinds }, lane) {
  return matchedKinds !== null && !matchedKinds.has(lane.category);
}

function isInBody(layout, { y, height }) {
  return y + height >= layout.bodyTop && y <= layout.bodyBottom;
}

// Adds an event's part of each column that it touches.
function addToColumns(columns, x, right) {
  for (let column = Math.max(Math.floor(x), 0); column < Math.min(right, columns.length); column++) {
    columns[column] += Math.min(right, column + 1) - Math.max(x, column);
  }
}
