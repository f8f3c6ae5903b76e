// The chips above the drawing: kinds of lane to show or hide, and what is out of order.

Object.assign(Viewer.prototype, {
  showLegend() {
    const { model, theme } = this.state, legend = this.find(".legend"), shown = new Map();
    for (const lane of model.sides.flatMap((side) => side.lanes)) shown.set(lane.category, model.header.categories[lane.category]);
    legend.replaceChildren();
    for (const [category, text] of shown) {
      const chip = element("button", "chip", text);
      chip.type = "button";
      chip.title = "Show or hide";
      chip.style.setProperty("--colour", theme.colours[category]);
      chip.setAttribute("aria-pressed", String(!this.state.hidden.has(category)));
      chip.addEventListener("click", () => {
        this.toggle(this.state.hidden, category);
        chip.setAttribute("aria-pressed", String(!this.state.hidden.has(category)));
      });
      legend.append(chip);
    }
    const first = model.sides.flatMap((side) => side.marks)[0];
    if (first) {
      const n = model.sides.reduce((sum, side) => sum + side.marks.length, 0);
      const chip = linkTo(`${plural(n, "pair")} out of order`, () => this.goTo(first.second ?? first.first));
      chip.classList.add("disorder");
      chip.style.setProperty("--colour", theme.colours.exposed);
      legend.append(chip);
    }
    if (shown.has("h2d")) {
      const exposed = element("span", "exposed", "exposed copy (nothing computes meanwhile)");
      exposed.style.setProperty("--colour", theme.colours.exposed);
      legend.append(exposed);
    }
  },
});
