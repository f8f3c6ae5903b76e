// How much of each pixel column a lane is busy, and how much of that is exposed copy. Unions: what overlaps counts once.

const FULL_SHARE = 65535; // what a bin's share is counted in (pack.py)

// The lane's busy time as spans that do not overlap, made once.
function busySpans(lane) {
  if (lane.busySpans) return lane.busySpans;
  const start = new Float64Array(lane.events), end = new Float64Array(lane.events);
  let n = 0;
  for (let i = 0; i < lane.events; i++) {
    if (n && lane.start[i] <= end[n - 1]) end[n - 1] = Math.max(end[n - 1], lane.end[i]);
    else {
      start[n] = lane.start[i];
      end[n++] = lane.end[i];
    }
  }
  lane.busySpans = { start: start.subarray(0, n), end: end.subarray(0, n) };
  return lane.busySpans;
}

// The time that spans cover before a moment.
function coveredBefore(spans, time) {
  if (!spans.before) {
    spans.before = new Float64Array(spans.start.length);
    for (let i = 1; i < spans.before.length; i++) spans.before[i] = spans.before[i - 1] + spans.end[i - 1] - spans.start[i - 1];
  }
  const last = firstAbove(spans.start, time) - 1;
  return last < 0 ? 0 : spans.before[last] + Math.min(time, spans.end[last]) - spans.start[last];
}

// The same of a lane's bins, each busy evenly.
function binsBefore(lane, name, [from, to], time) {
  const shares = lane[name], key = `${name}Before`, bin = (to - from) / shares.length;
  if (!lane[key]) {
    lane[key] = new Float64Array(shares.length + 1);
    for (let i = 0; i < shares.length; i++) lane[key][i + 1] = lane[key][i] + (shares[i] / FULL_SHARE) * bin;
  }
  const at = Math.min(Math.max((time - from) / bin, 0), shares.length), whole = Math.min(Math.floor(at), shares.length - 1);
  return lane[key][whole] + (at - whole) * (lane[key][whole + 1] - lane[key][whole]);
}

// The busy (or exposed) share of every column; where not all events were sent, outside their window that of the bins.
function columnShares(lane, side, extent, spans, name, from, scale, width) {
  const shares = new Float32Array(width), isWhole = lane.events === lane.all_events, [first, last] = side.window;
  const before = (time) => {
    if (isWhole) return coveredBefore(spans, time);
    const inside = Math.min(Math.max(time, first), last), bins = (moment) => binsBefore(lane, name, extent, moment);
    const outside = time < first ? bins(time) : bins(first) + bins(time > last ? time : last) - bins(last);
    return outside + coveredBefore(spans, inside) - coveredBefore(spans, first);
  };
  for (let x = 0, left = before(from); x < width; x++) {
    const right = before(from + (x + 1) / scale);
    shares[x] = Math.min(1, (right - left) * scale);
    left = right;
  }
  return shares;
}
