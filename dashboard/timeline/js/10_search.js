// Search: what matches stays strong, everything else fades; which of how many is chosen; next and previous.

Object.assign(Viewer.prototype, {
  search(query) {
    const { state } = this, { model } = state;
    const kinds = [...query.matchAll(/kind:(\w+)/gi)].map((found) => found[1].toLowerCase()), rest = query.replace(/kind:\w*/gi, "").trim();
    if (rest) state.haystacks ??= haystacks(model);
    const fits = matcher(rest);
    state.query = query.trim();
    state.matches = rest ? Uint8Array.from(state.haystacks, (text) => (fits(text) ? 1 : 0)) : null;
    state.matchedKinds = kinds.length ? new Set(kinds) : null;
    state.nMatching = 0;
    if (this.isSearching()) this.eachMatch(() => state.nMatching++);
    this.showFound();
    this.changed();
  },

  isSearching() {
    return this.state.matches !== null || this.state.matchedKinds !== null;
  },

  eachMatch(visit) {
    const { hidden, matches, matchedKinds, model } = this.state;
    eachMatch(model, hidden, matches, matchedKinds, (lane, i) => visit(lane.first + i));
  },

  // `3 of 144 matches`; without a chosen one among them, how many there are.
  showFound() {
    const { selected, nMatching } = this.state, all = plural(nMatching, "match").replace("matchs", "matches");
    let place = 0, n = 0;
    if (this.isSearching() && selected !== null) {
      this.eachMatch((number) => {
        n++;
        if (number === selected) place = n;
      });
    }
    this.find(".found").textContent = !this.isSearching() ? "" : place ? `${formatCount(place)} of ${all}` : all;
    for (const button of this.root.querySelectorAll("[data-do=next], [data-do=previous]")) button.hidden = !this.isSearching();
  },

  nextMatch(step) {
    if (!this.isSearching()) return;
    let first = null, last = null, before = null, after = null;
    const now = this.state.selected ?? -1;
    this.eachMatch((number) => {
      first ??= number;
      last = number;
      if (number < now) before = number;
      if (number > now) after ??= number;
    });
    const target = step > 0 ? after ?? first : before ?? last;
    if (target !== null) this.goTo(target);
  },
});
