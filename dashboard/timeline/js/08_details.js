// What is written beside the drawing: the clicked event, the hint at the pointer, the line that says what is merged.

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  return made;
}

function eventFacts(model, event, exposedNs) {
  const { side: number, label } = event.lane, side = model.sides[number], link = model.header.link_gb_s;
  const length = event.end - event.start, isCopy = ["h2d", "d2h", "d2d"].includes(event.lane.category);
  const facts = [
    ["Lane", model.sides.length > 1 ? `${"AB"[number]} · ${label}` : label],
    ["Starts", `${formatTime(event.start - side.offset, 6)}`],
    ["Takes", formatTime(length, 5)],
  ];
  const add = (name, value) => value !== null && value !== undefined && facts.push([name, String(value)]);
  add("Layer", event.layer);
  add("Ubatch", event.ubatch === null ? null : ubatchText(side, event.ubatch));
  add("Tensor", event.tensor?.replaceAll("|", ", "));
  if (event.bytes !== null) add("Bytes", formatBytes(event.bytes));
  if (event.wholeBytes !== null && event.wholeBytes > event.bytes) {
    add("Of the whole", `${trimmed((100 * event.bytes) / event.wholeBytes, 3)} % of ${formatBytes(event.wholeBytes)}`);
  }
  if (isCopy && event.bytes !== null && length > 0) {
    const rate = event.bytes / length, share = link ? ` (${Math.round((100 * rate) / link)} % of the link's ${trimmed(link, 3)})` : "";
    add("Speed", `${trimmed(rate, 3)} GB/s${event.lane.category === "h2d" ? share : ""}`);
  }
  if (exposedNs !== null) add("Exposed", length > 0 ? `${formatTime(exposedNs)} (${Math.round((100 * exposedNs) / length)} %)` : null);
  add("Experts", event.experts);
  add("Tokens", event.tokens);
  add("Slot", event.slot);
  add("Memory", event.memory);
  add("Note", event.detail);
  return facts;
}

function ubatchText(side, number) {
  const found = side.ubatches.find((u) => u[0] === number);
  return found ? `${number} (${[found[1], found[2] && plural(found[2], "token"), found[3]].filter(Boolean).join(", ")})` : `${number}`;
}

// How much of one copy was exposed: the sum of the exposed stretches that lie inside it.
function exposedWithin(event) {
  const spans = event.lane.exposedSpans;
  if (event.lane.category !== "h2d" || event.bytes === null) return null;
  let sum = 0;
  for (let i = firstAbove(spans.end, event.start); i < spans.start.length && spans.start[i] < event.end; i++) {
    sum += Math.min(spans.end[i], event.end) - Math.max(spans.start[i], event.start);
  }
  return sum;
}

function showDetails(panel, model, number, goTo, goToOther) {
  panel.replaceChildren();
  if (number === null) {
    panel.append(element("p", "hint", "Click an event to see what it was, what it waited for and what waited for it."));
    return;
  }
  const event = describeEvent(model, number);
  panel.append(element("h4", "", event.name ?? event.lane.label));
  const list = element("div", "facts");
  for (const [name, value] of eventFacts(model, event, exposedWithin(event))) list.append(fact(name, value));
  panel.append(list);
  const source = copyWaitedFor(model, number), waiters = waitersOf(model, number);
  if (source !== null) panel.append(linkTo(`Waited for copy: ${gapText(model, source, number)}`, () => goTo(source)));
  for (const { other, text } of marksOf(model, number)) {
    panel.append(element("p", "disorder", `Out of order: ${text}`));
    if (other !== null) panel.append(linkTo("The other operation", () => goTo(other)));
  }
  if (model.sides.length > 1 && event.layer !== null) panel.append(linkTo(`The same in ${model.sides[1 - event.lane.side].title} (O)`, goToOther));
  for (const waiter of waiters.slice(0, 4)) panel.append(linkTo(`Read by: ${gapText(model, number, waiter)}`, () => goTo(waiter)));
}

function gapText(model, copy, reader) {
  const from = describeEvent(model, copy), to = describeEvent(model, reader), gap = to.start - from.end;
  const other = to.lane.category === "wait" ? "a wait" : to.name ?? to.lane.label;
  return `${from.name ?? "copy"} → ${other}, ${gap >= 0 ? `${formatTime(gap)} later` : `${formatTime(-gap)} before its end`}`;
}

function linkTo(text, onClick) {
  const button = element("button", "link", text);
  button.type = "button";
  button.addEventListener("click", onClick);
  return button;
}

function statusText(state, counts) {
  const parts = [`${formatTime(state.view.span)} shown`, `${plural(counts.drawn, "event")} drawn one by one`];
  if (counts.merged) parts.push(`${formatCount(counts.merged)} narrower than a pixel merged into ${plural(counts.columns, "column")}`);
  if (counts.shares) parts.push("the rest as busy shares (zoom in there to load its events)");
  if (state.matches || state.matchedKinds) parts.push(`${plural(state.nMatching, "event")} match`);
  return `${parts.join("; ")}.`;
}

function fact(name, value) {
  const pair = element("dl");
  pair.append(element("dt", "", name), element("dd", "", value));
  return pair;
}
