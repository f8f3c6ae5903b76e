// What lies over the events: the overview strip, the selection and its arrows, the pointer, a chosen stretch.

Object.assign(Painter.prototype, {
  drawStrip(state) {
    const { layout, theme, view } = state, c = this.context, { top, height } = layout.strip;
    const [begin, end] = view.whole, scale = layout.width / (end - begin || 1);
    c.drawImage(this.stripImage(state), layout.left, top, layout.width, height);
    const left = layout.left + Math.max(0, (view.from - begin) * scale);
    const right = layout.left + Math.min(layout.width, (view.to - begin) * scale);
    c.fillStyle = theme.background;
    c.globalAlpha = 0.65;
    c.fillRect(layout.left, top, left - layout.left, height);
    c.fillRect(right, top, layout.left + layout.width - right, height);
    c.globalAlpha = 1;
    c.strokeStyle = theme.accent;
    c.lineWidth = 1.5;
    c.strokeRect(left + 0.75, top + 0.75, Math.max(right - left - 1.5, 3), height - 1.5);
    c.lineWidth = 1;
    c.fillStyle = theme.text;
    c.globalAlpha = 0.7;
    this.font(theme, 11);
    c.textAlign = "left";
    c.fillText("overview", 10, top + height / 2);
    c.globalAlpha = 1;
  },

  // Thousands of bins that only change with the data, the alignment, the size and the theme: drawn once, then copied.
  stripImage(state) {
    const { model, layout, theme, view } = state, offsets = model.sides.map((side) => side.offset), ratio = window.devicePixelRatio || 1;
    const key = [layout.width, ratio, theme.panel, state.query, ...offsets].join("|");
    if (this.strip?.key === key && this.strip.model === model) return this.strip.image;
    const image = document.createElement("canvas"), height = layout.strip.height;
    image.width = Math.round(layout.width * ratio);
    image.height = Math.round(height * ratio);
    const c = image.getContext("2d"), edges = model.header.extent, row = height / Math.max(model.sides.length, 1);
    const [begin, end] = view.whole, scale = layout.width / (end - begin || 1);
    c.scale(ratio, ratio);
    c.fillStyle = theme.panel;
    c.fillRect(0, 0, layout.width, height);
    model.sides.forEach((side, number) => {
      for (const [kind, key, colour, from, share] of [["compute", "busyShare", "compute", 0, 1], ["h2d", "exposedShare", "exposed", 0.5, 0.5]]) {
        c.fillStyle = theme.colours[colour];
        for (const lane of side.lanes.filter((l) => l.category === kind)) {
          const bin = (edges[1] - edges[0]) / lane[key].length, y = number * row + 1 + from * (row - 2);
          for (let i = 0; i < lane[key].length; i++) {
            if (!lane[key][i]) continue;
            c.globalAlpha = (lane[key][i] / FULL_SHARE) * 0.8;
            const x = (edges[0] + i * bin - side.offset - begin) * scale;
            c.fillRect(x, y, Math.max(bin * scale, 0.5), share * (row - 2));
          }
        }
      }
    });
    if (state.query) this.markMatches(c, state, row, begin, scale);
    this.strip = { key, model, image };
    return image;
  },

  // Where the search found something, so that one sees it wherever the view is.
  markMatches(c, { model, hidden, matches, matchedKinds, theme }, row, begin, scale) {
    c.fillStyle = theme.text;
    c.globalAlpha = 0.9;
    let last = -1;
    eachMatch(model, hidden, matches, matchedKinds, (lane, i) => {
      const side = model.sides[lane.side], x = Math.round((lane.start[i] - side.offset - begin) * scale);
      if (x !== last) c.fillRect(x, side.number * row, 1.5, 5);
      last = x;
    });
  },

  drawMarks(state) {
    const { layout } = state, bottom = layout.bodyBottom;
    this.inside(state, 0, bottom, () => {
      for (const stretch of state.model.header.stretches ?? []) this.drawStretch(stretch, state, bottom);
      for (const side of state.model.sides) for (const mark of side.marks) this.drawDisorder(mark, state);
      if (state.selected !== null) this.drawSelection(state);
      if (state.measured) this.drawMeasured(state, bottom);
      if (state.pointer) this.drawPointer(state, bottom);
    });
  },

  box(number, state) {
    const place = state.layout.lanes.find(({ lane }) => number >= lane.first && number < lane.first + lane.events);
    if (!place || !(place.isPinned || isInBody(state.layout, place))) return null;
    const at = number - place.lane.first, side = place.side, { top, tall } = rowBox(place, at);
    const left = this.x(place.lane.start[at] - side.offset, state), right = this.x(place.lane.end[at] - side.offset, state);
    return { left, right, top, height: tall, middle: top + tall / 2 };
  },

  // A stretch that becomes an arm: its ground, its ends, and its name where that has room.
  drawStretch([from, to, name], state, bottom) {
    const { layout, theme, model } = state, c = this.context, offset = model.sides[0].offset;
    const left = this.x(from - offset, state), right = this.x(to - offset, state);
    if (right < layout.left || left > layout.left + layout.width) return;
    c.fillStyle = theme.accent;
    c.globalAlpha = 0.1;
    c.fillRect(left, AXIS_HEIGHT, right - left, bottom - AXIS_HEIGHT);
    c.globalAlpha = 1;
    for (const x of [left, right - 1.5]) c.fillRect(x, AXIS_HEIGHT, 1.5, bottom - AXIS_HEIGHT);
    const [begin, end] = [Math.max(left, layout.left), Math.min(right, layout.left + layout.width)];
    this.font(theme, 11, "600");
    const text = fitText(c, name, end - begin - 16);
    if (end - begin > 26) this.pill(text, (begin + end) / 2, AXIS_HEIGHT + TITLE_HEIGHT / 2, theme.accent, state);
  },

  // Both operations of a finding: framed, under a flag that shows where they are narrower than a pixel.
  drawDisorder({ first, second }, state) {
    const c = this.context, { theme } = state;
    c.strokeStyle = c.fillStyle = theme.colours.exposed;
    for (const number of [first, second]) {
      const box = number === null ? null : this.box(number, state);
      if (!box) continue;
      c.lineWidth = 2;
      c.setLineDash([4, 2]);
      c.strokeRect(box.left, box.top + 1, Math.max(box.right - box.left, 2), box.height - 2);
      c.setLineDash([]);
      c.lineWidth = 1;
      c.beginPath();
      c.moveTo(box.left, box.top + 5);
      c.lineTo(box.left - 4, box.top - 3);
      c.lineTo(box.left + 4, box.top - 3);
      c.fill();
    }
  },

  drawSelection(state) {
    const { model, theme, selected } = state, c = this.context, box = this.box(selected, state);
    if (!box) return;
    const source = copyWaitedFor(model, selected);
    if (source !== null) this.drawArrow(this.box(source, state), box, state);
    for (const waiter of waitersOf(model, selected)) this.drawArrow(box, this.box(waiter, state), state);
    c.strokeStyle = theme.text;
    c.lineWidth = 2;
    c.strokeRect(box.left - 1, box.top - 0.5, Math.max(box.right - box.left, 2) + 2, box.height + 1);
    c.lineWidth = 1;
  },

  // From a copy's end to the start of the work that reads it.
  drawArrow(from, to, state) {
    if (!from || !to) return;
    const c = this.context, { theme } = state;
    const [x0, y0, x1, y1] = [from.right, from.middle, to.left, to.middle], bend = Math.max(18, Math.abs(x1 - x0) / 3);
    for (const [colour, width] of [[theme.background, 5], [theme.text, 2]]) {
      c.strokeStyle = c.fillStyle = colour;
      c.lineWidth = width;
      c.beginPath();
      c.moveTo(x0, y0);
      c.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 5, y1);
      c.stroke();
    }
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x1 - 8, y1 - 4.5);
    c.lineTo(x1 - 8, y1 + 4.5);
    c.fill();
    c.lineWidth = 1;
  },

  drawMeasured(state, bottom) {
    const { theme, measured } = state, c = this.context;
    const [a, b] = [Math.min(...measured), Math.max(...measured)], left = this.x(a, state), right = this.x(b, state);
    c.fillStyle = theme.accent;
    c.globalAlpha = 0.15;
    c.fillRect(left, AXIS_HEIGHT - 4, right - left, bottom);
    c.globalAlpha = 1;
    c.fillRect(left, AXIS_HEIGHT - 4, 1.5, bottom);
    c.fillRect(right - 1.5, AXIS_HEIGHT - 4, 1.5, bottom);
    this.pill(formatTime(b - a, 4), (left + right) / 2, 11, theme.accent, state);
  },

  drawPointer(state, bottom) {
    const { theme, pointer } = state, c = this.context;
    c.strokeStyle = theme.text;
    c.globalAlpha = 0.35;
    c.beginPath();
    c.moveTo(Math.round(pointer.x) + 0.5, AXIS_HEIGHT - 4);
    c.lineTo(Math.round(pointer.x) + 0.5, bottom);
    c.stroke();
    c.globalAlpha = 1;
    const time = state.view.from + (pointer.x - state.layout.left) / this.scale;
    if (!state.measured) this.pill(formatTime(time, 5), pointer.x, 11, theme.text, state);
  },

  pillEdges(text, x, { layout, theme }) {
    this.font(theme, 11, "600");
    const width = this.context.measureText(text).width + 12;
    const left = Math.min(Math.max(x - width / 2, layout.left), layout.left + layout.width - width);
    return { left, right: left + width };
  },

  pill(text, x, y, colour, state) {
    const c = this.context, { left, right } = this.pillEdges(text, x, state), width = right - left;
    c.fillStyle = colour;
    c.beginPath();
    c.roundRect(left, y - 9, width, 18, 9);
    c.fill();
    c.fillStyle = luminance(colour) > 0.45 ? "#111" : "#fff";
    c.textAlign = "center";
    c.fillText(text, left + width / 2, y + 0.5);
  },
});

function fitText(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}
