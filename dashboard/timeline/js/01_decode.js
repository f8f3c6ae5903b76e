// Reads the bytes that columns.py writes into typed arrays, one set a lane.

function decodeTimeline(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== "HPT2") throw new Error("these bytes are no timeline");
  const headerLength = view.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + headerLength)));
  const columns = {};
  for (const [name, place] of Object.entries(header.columns)) {
    columns[name] = readColumn(bytes, 8 + headerLength + place.offset, place);
  }
  const sides = splitSides(header, columns);
  const waiting = sumDifferences(columns.waiting);
  const waitedCopy = sumDifferences(columns.waited_copy);
  return { header, columns, sides, waiting, waitedCopy, byCopy: null, nEvents: columns.signature.length };
}

function readColumn(bytes, at, place) {
  if (place.type === "var") return { data: bytes.subarray(at, at + place.bytes), length: place.length, at: 0 };
  const kind = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array }[place.type];
  // A copy, because the block may start at any address and typed arrays need theirs aligned.
  return new kind(bytes.slice(at, at + place.length * kind.BYTES_PER_ELEMENT).buffer);
}

// Reads the next numbers of a "var" column; most of them have two or three bytes.
function readInto(column, values) {
  const data = column.data;
  let at = column.at;
  for (let i = 0; i < values.length; i++) {
    let byte = data[at++], value = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = data[at++];
      value += (byte & 127) * scale;
    }
    values[i] = value;
  }
  column.at = at;
  return values;
}

function sumDifferences(column) {
  const folded = readInto(column, new Float64Array(column.length)), values = new Uint32Array(folded.length);
  for (let i = 0, sum = 0; i < folded.length; i++) {
    sum += folded[i] % 2 ? -(folded[i] + 1) / 2 : folded[i] / 2;
    values[i] = sum;
  }
  return values;
}

function splitSides(header, columns) {
  const nBins = header.n_bins;
  let event = 0, anchor = 0, share = 0;
  return header.sides.map((side, number) => {
    const lanes = side.lanes.map((facts) => {
      const lane = { ...facts, side: number, first: event };
      lane.signature = columns.signature.subarray(event, event + facts.events);
      Object.assign(lane, times(columns.delta, columns.length, facts.events, side.base_ns));
      lane.exposedSpans = times(columns.exposed_delta, columns.exposed_length, facts.exposed, side.base_ns);
      lane.busyShare = columns.busy_share.subarray(share, share + nBins);
      lane.exposedShare = columns.exposed_share.subarray(share, share + nBins);
      event += facts.events;
      share += nBins;
      return lane;
    });
    // [first, second, text] of operations that are out of order, as numbers over all sides; null: not sent.
    const begin = lanes.length ? lanes[0].first : event, over = (at) => (at === null ? null : begin + at);
    const marks = side.marks.map(([first, second, text]) => ({ first: over(first), second: over(second), text }));
    const starts = { from: anchor, to: anchor + side.layer_starts };
    anchor = starts.to;
    return { ...side, number, lanes, marks, starts, offset: 0 };
  });
}

// Starts, ends, and the latest end so far, which tells where to begin looking for what is still running.
function times(deltas, lengths, count, base) {
  const start = readInto(deltas, new Float64Array(count)), end = readInto(lengths, new Float64Array(count));
  const latest = new Float64Array(count);
  for (let i = 0, now = base, highest = -Infinity; i < count; i++) {
    now += start[i];
    start[i] = now;
    end[i] += now;
    if (end[i] > highest) highest = end[i];
    latest[i] = highest;
  }
  return { start, end, latest };
}

// First index whose value is greater than (or, with `orEqual`, not less than) the limit.
function firstAbove(values, limit, orEqual = false) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit || (orEqual && values[middle] === limit)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Everything known about one event, by its number over all sides.
function describeEvent(model, number) {
  const lane = model.sides.flatMap((side) => side.lanes).find((l) => number >= l.first && number < l.first + l.events);
  if (!lane) return null;
  const row = number - lane.first, signature = lane.signature[row], column = model.columns;
  const known = (name) => (column[`of_${name}`][signature] < 0 ? null : column[`of_${name}`][signature]);
  const text = (name) => (known(name) === null ? null : model.header.texts[known(name)]);
  return {
    number, lane, row, start: lane.start[row], end: lane.end[row],
    name: text("name"), tensor: text("tensor"), memory: text("source_memory"), detail: text("detail"),
    layer: known("layer"), tokens: known("n_tokens"), experts: known("n_experts"), slot: known("slot"),
    bytes: known("bytes"), wholeBytes: known("whole_bytes"),
    ubatch: ubatchOf(model, number),
  };
}

// The event of a side that starts and ends exactly then; null where none of those that were sent does.
function eventAt(side, [start, end]) {
  for (const lane of side.lanes) {
    for (let i = firstAbove(lane.start, start, true); i < lane.events && lane.start[i] === start; i++) {
      if (lane.end[i] === end) return lane.first + i;
    }
  }
  return null;
}

function ubatchOf({ columns }, number) {
  const run = firstAbove(columns.run_begin, number) - 1;
  return run >= 0 && columns.run_ubatch[run] >= 0 ? columns.run_ubatch[run] : null;
}

// Calls visit(lane, row) for each event that a search found, in the order of their numbers.
function eachMatch(model, hidden, matches, matchedKinds, visit) {
  for (const lane of model.sides.flatMap((side) => side.lanes)) {
    if (hidden.has(lane.category) || (matchedKinds && !matchedKinds.has(lane.category))) continue;
    for (let i = 0; i < lane.events; i++) if (!matches || matches[lane.signature[i]]) visit(lane, i);
  }
}

function copyWaitedFor(model, number) {
  const at = firstAbove(model.waiting, number, true);
  return model.waiting[at] === number ? model.waitedCopy[at] : null;
}

// The pairs out of order that an event is in, each with the other event.
function marksOf(model, number) {
  const found = [];
  for (const { first, second, text } of model.sides.flatMap((side) => side.marks)) {
    if (number === first || number === second) found.push({ other: number === first ? second : first, text });
  }
  return found;
}

// The events that wait for a copy, in the order of their numbers.
function waitersOf(model, number) {
  model.byCopy ??= Uint32Array.from(model.waitedCopy.keys()).sort((a, b) => model.waitedCopy[a] - model.waitedCopy[b]);
  let low = 0, high = model.byCopy.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (model.waitedCopy[model.byCopy[middle]] < number) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (; low < model.byCopy.length && model.waitedCopy[model.byCopy[low]] === number; low++) {
    found.push(model.waiting[model.byCopy[low]]);
  }
  return found.sort((a, b) => a - b);
}
