// Events of one lane that overlap stand in rows of their own.

const MAX_ROWS = 6; // what overlaps deeper shares the last one

// Each event's row and how many there are, made once; `row` is null where nothing overlaps.
function rowsOf(lane) {
  if (lane.rows) return lane.rows;
  const row = new Uint8Array(lane.events), free = [-Infinity];
  for (let i = 0; i < lane.events; i++) {
    let at = free.findIndex((end) => end <= lane.start[i]);
    if (at < 0) at = free.length < MAX_ROWS ? free.push(-Infinity) - 1 : MAX_ROWS - 1;
    row[i] = at;
    free[at] = Math.max(free[at], lane.end[i]);
  }
  lane.rows = { row: free.length > 1 ? row : null, count: free.length };
  return lane.rows;
}

// Top and height of an event's row inside its lane's place.
function rowBox(place, i) {
  const { row } = rowsOf(place.lane);
  return row ? rowAt(place, row[i]) : { top: place.y, tall: place.height };
}

// The same of a row by its number, in whole pixels.
function rowAt({ lane, y, height }, number) {
  const each = height / rowsOf(lane).count, top = Math.round(y + number * each);
  return { top, tall: Math.max(Math.round(y + (number + 1) * each) - top - 1, 1) };
}
