// Nodes as boxes, ranks coloured by their group and numbered by it; a chosen group stands out.
const placement = {
  axis: null, group: -1, built: null,

  start() {
    if (!byId("place") || !run.axes || !run.axes.length) return;
    byId("place").hidden = false;
    const axis = byId("place-axis"), group = byId("place-group"), boxes = byId("place-boxes");
    axis.append(...run.axes.map((one, number) => make("option", { value: number }, one.name)));
    axis.onchange = () => this.choose(Number(axis.value), -1);
    group.onchange = () => this.choose(Number(axis.value), Number(group.value));
    boxes.onclick = event => { const rank = event.target.closest("[data-rank]"); if (rank) { const of = run.axes[this.axis].groupOf[rank.dataset.rank]; this.choose(this.axis, of === this.group ? -1 : of); } };
    boxes.onpointermove = event => { const rank = event.target.closest("[data-rank]"); tip(rank && this.sayRank(Number(rank.dataset.rank)), event); };
    boxes.onpointerleave = () => tip(null);
    // many boxes are made when they come near the window
    const watch = new IntersectionObserver(seen => { if (seen.some(one => one.isIntersecting)) { watch.disconnect(); this.build(boxes); this.choose(0, -1); } }, { rootMargin: "600px" });
    if (world <= 512) this.build(boxes); else watch.observe(boxes);
    addEventListener("beforeprint", () => { if (!this.built) { watch.disconnect(); this.build(boxes); this.choose(0, -1); } });
    this.choose(0, -1);
  },

  build(boxes) {
    this.built = new Array(world);
    let leaf;
    for (const node of nodeOrder) {
      if (leafName(node) !== leaf) { leaf = leafName(node); boxes.append(make("h3", {}, leaf === null ? "leaf unknown" : leaf)); }
      const ranks = ranksOn[node].map(rank => this.built[rank] = make("span", { class: "rank", "data-rank": rank }));
      boxes.append(make("div", { class: "box" }, make("b", {}, run.nodes[node]), make("div", { class: "ranks" }, ...ranks)));
    }
  },

  sayRank(rank) {
    const { name, groupOf, crossing } = run.axes[this.axis], group = groupOf[rank];
    return [endName(rank), group < 0 ? `in no group of ${name}` : `group ${name}${group}, ${this.crosses(crossing[group])}`];
  },

  crosses: mark => ({ 1: "leaves its NVLink domain", 0: "inside one NVLink domain" })[mark] || "nobody knows whether it leaves its NVLink domain",

  choose(axis, group) {
    const { name, groupOf, crossing } = run.axes[axis], select = byId("place-group");
    if (axis !== this.axis) select.replaceChildren(make("option", { value: -1 }, "all"), ...Array.from(crossing, (_, number) => make("option", { value: number }, name + number)));
    Object.assign(this, { axis, group });
    byId("place-axis").value = axis;
    select.value = group;
    const number = mark => Array.from(crossing).filter(one => one === mark).length, open = number("?");
    let text = `${name}: ${crossing.length} groups; ${number("1")} leave their NVLink domain, ${number("0")} stay inside one` + (open ? `, of ${open} nobody knows.` : ".");
    if (group >= 0) {
      const ranks = groupOf.flatMap((of, rank) => of === group ? [rank] : []), nodes = [...new Set(ranks.map(rank => run.nodeOf[rank]))], leaves = new Set(nodes.map(leafName));
      const named = nodes.slice(0, 12).map(node => run.nodes[node]).join(", ") + (nodes.length > 12 ? ", ..." : "");
      text = `${name}${group}, ${this.crosses(crossing[group])}: ${ranks.length} ranks on ${nodes.length} node${nodes.length > 1 ? "s" : ""} (${named}), ${leaves.has(null) ? "leaves not known" : leaves.size + (leaves.size > 1 ? " leaves" : " leaf")}.`;
    }
    byId("place-says").textContent = text;
    byId("place-boxes").classList.toggle("dim", group >= 0);
    if (!this.built) return;
    for (let rank = 0; rank < world; rank++) {
      const of = groupOf[rank];
      this.built[rank].className = "rank " + (of < 0 ? "gn" : `g${of % 8} x${{ 1: 1, 0: 0 }[crossing[of]] ?? "q"}`) + (group >= 0 && of === group ? " on" : "");
      this.built[rank].textContent = of < 0 ? "\u2013" : of;
    }
  },
};
