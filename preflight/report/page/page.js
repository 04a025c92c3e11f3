// Puts it together. The tables stand without it; if it fails, they say all the same what matters.
const matrices = {};

function nodeMatrix(pairs) {
  const host = byId("node-matrix");
  if (!host) return;
  const { worst, measured } = worstBetween(pairs), possible = (one, other) => one === other ? ranksOn[one].length * (ranksOn[one].length - 1) / 2 : ranksOn[one].length * ranksOn[other].length;
  const at = (row, column) => nodeOrder[row] * numNodes + nodeOrder[column];
  const sent = new Map();
  for (const [from, to, rate] of run.sends) {
    const key = run.nodeOf[from] * numNodes + run.nodeOf[to], before = sent.get(key);
    if (before === undefined || rate === null || (before[2] !== null && rate < before[2])) sent.set(key, [from, to, rate]);
  }
  matrices["node-matrix"] = new Matrix(host, pairs, {
    size: numNodes, same: true, label: row => run.nodes[nodeOrder[row]], lines: [leafLines(nodeOrder.map(leafName))],
    cell: (row, column) => { const i = worst[at(row, column)]; return i < 0 ? null : { rate: pairs.rate[i], ratio: pairs.ratio[i], failed: pairs.failed(i) }; },
    eachPair: act => { for (let row = 0; row < numNodes; row++) for (let column = 0; column < numNodes; column++) if (worst[at(row, column)] >= 0) act(row, column, worst[at(row, column)]); },
    oneWay: sent.size ? (row, column) => { const way = sent.get(at(row, column)); return way ? asCell(pairs, way) : null; } : null,
    say: (row, column, way) => {
      const [one, other] = [nodeOrder[row], nodeOrder[column]], i = worst[one * numNodes + other], title = (way === "one" ? [run.nodes[one], run.nodes[other]].join(" \u2192 ") : one === other ? "inside " + run.nodes[one] : run.nodes[one] + " \u2194 " + run.nodes[other]);
      if (way === "one") { const found = sent.get(one * numNodes + other); return [title, found ? `slowest: rank ${found[0]} \u2192 rank ${found[1]}, ${rateText(found[2])}` : "not measured one way: unknown"]; }
      if (i < 0) return [title, "not measured: unknown"];
      return [title, "worst: " + sayPair(pairs, i, pairs.a[i], pairs.b[i])[0], ...sayPair(pairs, i, pairs.a[i], pairs.b[i]).slice(1), `${measured[one * numNodes + other]} of ${possible(one, other)} pairs of GPUs measured`];
    },
    open: (row, column) => showNodePair(pairs, nodeOrder[row], nodeOrder[column]),
    first: () => { const i = worstOf(pairs, true); return i < 0 ? [0, 0] : [run.nodeOf[pairs.a[i]], run.nodeOf[pairs.b[i]]].map(node => nodeOrder.indexOf(node)); },
    place: rank => nodeOrder.indexOf(run.nodeOf[rank]),
  });
  const silent = nodeOrder.filter(node => nodeOrder.every(other => worst[node * numNodes + other] < 0)).map(node => run.nodes[node]);
  byId("uncovered-nodes").textContent = silent.length ? `Nodes without a measured pair: ${silent.slice(0, 64).join(", ")}${silent.length > 64 ? ` and ${silent.length - 64} more` : ""}.` : "";
}

function gpuMatrix(pairs) {
  const host = byId("gpu-matrix");
  if (!host) return;
  const byNode = nodeOrder.flatMap(node => ranksOn[node]), place = [];
  const bySlot = [...byNode].sort((p, q) => run.slotOf[p] - run.slotOf[q]); // stable: sorted by leaf and node within a slot
  let order = byNode;
  const cellOf = i => i < 0 ? null : { rate: pairs.rate[i], ratio: pairs.ratio[i], failed: pairs.failed(i) };
  const model = {
    arrange(how) {
      order = how === "slot" ? bySlot : byNode;
      order.forEach((rank, at) => { place[rank] = at; });
      const nodes = leafLines(order.map(rank => run.nodes[run.nodeOf[rank]])), leaves = leafLines(order.map(rank => leafName(run.nodeOf[rank])));
      this.arranged = how;
      this.lines = how === "slot" ? [leafLines(order.map(rank => "GPU " + run.slotOf[rank]))] : leaves.length ? [nodes, leaves] : [nodes];
    },
    size: world, same: false, label: row => run.nodes[run.nodeOf[order[row]]] + " " + run.slotOf[order[row]], top: column => String(run.slotOf[order[column]]),
    cell: (row, column) => row === column ? null : cellOf(findPair(pairs, order[row], order[column])),
    eachPair: act => { for (let i = 0; i < pairs.count; i++) { act(place[pairs.a[i]], place[pairs.b[i]], i); act(place[pairs.b[i]], place[pairs.a[i]], i); } },
    oneWay: sends.size ? (row, column) => { const rate = sends.get(order[row] * world + order[column]); return rate === undefined ? null : asCell(pairs, [order[row], order[column], rate]); } : null,
    say: (row, column) => row === column ? [endName(order[row]), "the GPU itself"] : sayPair(pairs, findPair(pairs, order[row], order[column]), order[row], order[column]),
    open: () => {},
    first: () => { const i = worstOf(pairs, false); return i < 0 ? [0, 0] : [place[pairs.a[i]], place[pairs.b[i]]]; },
    place: rank => place[rank],
  };
  model.arrange(world > 64 && numNodes > 2 ? "slot" : "node"); // pairs are mostly of like slots: so they lie together
  matrices["gpu-matrix"] = new Matrix(host, pairs, model);
}

// One way has no reference of its own: the rate of both ways at once is another operation.
const asCell = (pairs, [, , rate]) => ({ rate: rate ?? NaN, ratio: NaN, failed: rate === null });

const leafLines = names => names.every(name => name === null) ? [] : names.flatMap((name, at) => at && names[at - 1] === name ? [] : [{ at, name: name === null ? "leaf unknown" : name }]);

function worstOf(pairs, between) {
  let worst = -1;
  for (let i = 0; i < pairs.count; i++) if ((!between || run.nodeOf[pairs.a[i]] !== run.nodeOf[pairs.b[i]]) && isWorse(pairs, i, worst)) worst = i;
  return worst;
}

function wire(pairs) {
  for (const button of document.querySelectorAll("[data-show]")) {
    const matrix = matrices[button.dataset.show];
    button.hidden = !matrix;
    if (matrix) button.onclick = () => {
      const cell = [button.dataset.a, button.dataset.b].map(rank => matrix.model.place(Number(rank)));
      matrix.reveal(...cell);
      matrix.model.open(...cell);
    };
  }
  const choose = node => { showNode(pairs, node); byId("node-detail").focus(); byId("node-detail").scrollIntoView({ block: "nearest" }); };
  for (const button of document.querySelectorAll("[data-node]")) button.onclick = () => choose(Number(button.dataset.node));
  const find = byId("find-node");
  if (!find) return;
  byId("find-bar").hidden = numNodes < 9;
  byId("node-names").append(...nodeOrder.map(node => make("option", { value: run.nodes[node] })));
  find.onchange = () => {
    const node = run.nodes.indexOf(find.value.trim());
    byId("find-says").textContent = node < 0 && find.value ? "no such node in this run" : "";
    if (node >= 0) choose(node);
  };
}

function redraw() {
  for (const matrix of Object.values(matrices)) matrix.draw();
  for (const box of document.querySelectorAll(".detail")) if (!box.hidden && box.again) box.again();
}

async function main() {
  let pairs = null;
  if (run.pairs && run.pairs.count) pairs = await unpackPairs();
  if (pairs) { nodeMatrix(pairs); gpuMatrix(pairs); }
  if (numNodes) wire(pairs);
  placement.start();
  for (const query of [dark, paper]) query.addEventListener("change", redraw);
  addEventListener("beforeprint", redraw);
  addEventListener("afterprint", redraw);
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  document.documentElement.dataset.ready = Math.round(performance.now());
}

main().catch(error => {
  console.error(error);
  document.querySelector("main").prepend(make("p", { class: "warning", role: "alert" }, "The matrices can't be drawn by this browser (" + error.message + "); the tables are complete."));
});
