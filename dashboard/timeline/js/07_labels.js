// Names at the left of lanes, heads of sides and groups (folded ones with a summary), and where first tokens and ubatches end.

Object.assign(Painter.prototype, {
  drawHeaders(state) {
    const { layout, theme, model } = state, c = this.context;
    c.textAlign = "left";
    c.fillStyle = theme.text;
    for (const { kind, side, y, height, label, isFolded, lanes } of layout.headers) {
      const isSide = kind === "side", badge = model.sides.length > 1 ? `${"AB"[side.number]}  ` : "";
      this.font(theme, isSide ? 13 : 11.5, "600");
      const text = isSide ? `${badge}${side.title}` : label, sign = isFolded ? "▸" : "▾";
      const room = layout.labelWidth + (isSide && !side.ubatches.length ? layout.width : 0) - 26;
      c.globalAlpha = isSide ? 1 : 0.85;
      c.fillText(sign, 4, y + height / 2);
      c.fillText(fitText(c, isFolded ? `${text} (${lanes.length})` : text, room), 18, y + height / 2);
    }
    c.globalAlpha = 1;
    for (const place of layout.lanes) if (!place.isPinned && isInBody(layout, place)) this.drawLabel(place, state);
  },

  drawLabels(state) {
    const { layout, theme, scroll } = state, c = this.context;
    for (const place of layout.lanes) if (place.isPinned) this.drawLabel(place, state);
    if (!layout.mostScroll) return;
    const room = layout.bodyBottom - layout.bodyTop, share = room / (room + layout.mostScroll);
    c.globalAlpha = 0.4;
    c.fillStyle = theme.text;
    c.fillRect(layout.left + layout.width - 5, layout.bodyTop + (scroll / layout.mostScroll) * room * (1 - share), 4, room * share);
    c.globalAlpha = 1;
  },

  drawLabel({ lane, y, height, isPinned, inGroup }, state) {
    const { layout, theme, model } = state, c = this.context, indent = inGroup ? 18 : 10;
    c.textAlign = "left";
    c.globalAlpha = 1;
    c.fillStyle = theme.colours[lane.category];
    c.fillRect(2, y, 3, height);
    c.globalAlpha = 0.9;
    c.fillStyle = theme.text;
    this.font(theme, isThin(lane) ? 11 : 12);
    const badge = isPinned && model.sides.length > 1 ? `${"AB"[lane.side]} ` : "", mark = isPinned ? "★ " : "";
    const label = inGroup ? lane.in_group : lane.label, room = layout.labelWidth - indent - 6;
    const text = c.measureText(`${mark}${badge}${label}`).width > room ? lane.short : label;
    c.fillText(fitText(c, `${mark}${badge}${text}`, room), indent, y + height / 2 + 0.5);
    c.globalAlpha = 1;
  },

  // Of a folded side or group: how busy its compute was, and its exposed copy at the foot.
  drawFolded({ side, y, height, lanes }, state) {
    const { model, view, layout, theme } = state, c = this.context;
    for (const [category, name, spans, colour] of [["compute", "busyShare", busySpans, "compute"], ["h2d", "exposedShare", (lane) => lane.exposedSpans, "exposed"]]) {
      c.fillStyle = theme.colours[colour];
      for (const lane of lanes.filter((one) => one.category === category)) {
        const shares = columnShares(lane, side, model.header.extent, spans(lane), name, view.from + side.offset, this.scale, layout.width);
        for (let x = 0; x < shares.length; x++) if (shares[x]) c.fillRect(layout.left + x, y + height - 3 - (height - 6) * shares[x], 1, (height - 6) * shares[x]);
      }
    }
  },

  // The mark of a side's first token: where it is, what it says (in B how much earlier or later than in A), and where that
  // begins and ends; null where it is not on the screen.
  firstToken(side, state) {
    const { layout, model } = state;
    if (side.first_token_ns === null) return null;
    const x = Math.round(this.x(side.first_token_ns - side.offset, state)) + 0.5;
    if (x < layout.left || x > layout.left + layout.width) return null;
    const against = side.number ? sinceA(model.sides[0].first_token_ns, side.first_token_ns, model) : "";
    const text = `first token ${formatTime(side.first_token_ns - side.offset)}${against && ` (${against})`}`;
    return { x, text, ...this.pillEdges(text, x, state) };
  },

  // Where first tokens are known.
  drawEnds(state) {
    const { layout, theme } = state, c = this.context;
    for (const { side, top, bottom } of layout.sides) {
      const token = this.firstToken(side, state);
      if (!token) continue;
      c.strokeStyle = theme.accent;
      c.setLineDash([5, 3]);
      c.beginPath();
      c.moveTo(token.x, top + 4);
      c.lineTo(token.x, bottom);
      c.stroke();
      c.setLineDash([]);
      this.pill(token.text, token.x, top + TITLE_HEIGHT / 2, theme.accent, state);
    }
  },
});

// What stands over a ubatch, from the longest: in B also how much earlier or later than A's it ends.
function ubatchTexts(model, side, number, phase, tokens, end) {
  const name = phase === "decode" ? `decode ${number}` : `ubatch ${number}`, sized = tokens && phase !== "decode" ? `${name} · ${plural(tokens, "token")}` : name;
  const same = side.number ? model.sides[0].ubatches.find((one) => one[0] === number && one[1] === phase) : null;
  return [...(same ? [`${sized} · ends ${sinceA(same[5], end, model)}`] : []), sized, name];
}

// `12.3 ms earlier`: a moment of B against one of A, as the sides lie on each other; empty where A has none.
function sinceA(ofA, ofB, model) {
  if (ofA === null || ofB === null) return "";
  const later = ofB - model.sides[1].offset - (ofA - model.sides[0].offset);
  return later === 0 ? "at the same time" : `${formatTime(Math.abs(later))} ${later > 0 ? "later" : "earlier"}`;
}
