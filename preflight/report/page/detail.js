// What is said of a pair, and the tables of the GPUs of two nodes and of one node.
function sayPair(pairs, i, a, b) {
  const ends = [endName(a) + " \u2194 " + endName(b)];
  if (i < 0) ends.push("not measured both ways at once: unknown");
  else {
    const [route, reference, expected] = run.routes[pairs.route[i]];
    ends.push(pairs.failed(i) ? "failed: every attempt" : rateText(pairs.rate[i]) + (reference ? ", " + percent(pairs.ratio[i]) + " of the reference" : ", no reference to compare with"));
    ends.push("route: " + route + (reference ? ", reference " + rateText(reference) : "") + (expected ? ", by formula " + rateText(expected) : ""));
  }
  for (const [from, to] of [[a, b], [b, a]]) {
    const rate = sends.get(from * world + to);
    if (rate !== undefined) ends.push(`one way, rank ${from} \u2192 rank ${to}: ${rateText(rate)}`);
  }
  if (run.simulated) ends.push("SIMULATED");
  return ends;
}

function gpuTable(pairs, one, other) {
  const rows = ranksOn[one], columns = ranksOn[other];
  const cellOf = (a, b) => {
    if (a === b) return make("td", {}, "\u2014");
    const i = findPair(pairs, a, b), ways = [[a, b], [b, a]].map(([from, to]) => [from, to, sends.get(from * world + to)]).filter(way => way[2] !== undefined);
    const small = ways.map(([from, to, rate]) => make("small", {}, `${from}\u2192${to} ${rateText(rate)}`));
    if (i < 0) return make("td", { class: "none", title: "not measured" }, make("span", { class: "hidden" }, "not measured"), ...small);
    const scale = run.routes[pairs.route[i]][1] ? "ratio" : "rate";
    const colour = pairs.failed(i) ? parts(FAIL_COLOUR[scale][theme()]) : shade(onScale(pairs, scale, pairs.rate[i], pairs.ratio[i]), stopsOf(scale));
    const cell = make("td", { title: sayPair(pairs, i, a, b).join("\n") }, pairs.failed(i) ? "\u00d7 failed" : rateText(pairs.rate[i]).replace(" GB/s", ""), Number.isNaN(pairs.ratio[i]) ? null : make("small", {}, percent(pairs.ratio[i])), ...small);
    cell.style.background = `rgb(${colour})`;
    cell.style.color = inkOn(colour);
    return cell;
  };
  const head = make("tr", {}, make("th", { scope: "col" }, run.nodes[one] + " \\ " + run.nodes[other]), ...columns.map(rank => make("th", { scope: "col" }, "GPU " + run.slotOf[rank])));
  const body = rows.map(a => make("tr", {}, make("th", { scope: "row" }, "GPU " + run.slotOf[a] + ", rank " + a), ...columns.map(b => cellOf(a, b))));
  const what = one === other ? "GPUs inside " + run.nodes[one] : `GPUs of ${run.nodes[one]} against those of ${run.nodes[other]}`;
  const table = make("table", { class: "gpus" }, make("caption", {}, what + ", GB/s unless told, share of reference below; hatched: not measured" + (run.simulated ? " (SIMULATED)" : "")), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": what }, table);
}

function showDetail(box, again, ...children) {
  const close = make("button", { class: "close", type: "button", onclick: () => { box.hidden = true; box.again = null; } }, "close");
  box.replaceChildren(close, ...children.filter(child => child !== null));
  box.hidden = false;
  box.again = again; // drawn anew when the colours change
}

function showNodePair(pairs, one, other) {
  const box = byId("node-pair") || byId("node-detail");
  showDetail(box, () => showNodePair(pairs, one, other), gpuTable(pairs, one, other));
}

const listTable = (caption, head, rows) => make("table", {}, make("caption", {}, caption),
  make("thead", {}, make("tr", {}, ...head.map(name => make("th", { scope: "col" }, name)))),
  make("tbody", {}, ...rows.map(([first, ...rest]) => make("tr", {}, make("th", { scope: "row" }, first), ...rest.map(text => make("td", {}, text))))));

function showNode(pairs, node) {
  const findings = run.findings[node] || [], facts = run.factsOf[node] < 0 ? [] : run.facts[run.factsOf[node]];
  const alone = run.alone.filter(op => ranksOn[node].some(rank => op.values[rank] !== null));
  const list = findings.map(([verdict, check, subject, observed, remedy]) => make("li", {}, make("span", { class: "verdict v-" + verdict.toLowerCase() }, verdict), " ", make("span", { class: "check" }, check), ` ${subject}: ${observed}`, remedy ? make("br") : null, remedy ? "remedy: " + remedy : null));
  const halves = [];
  if (alone.length) halves.push(listTable("GPUs by themselves" + (run.simulated ? " (SIMULATED)" : ""), ["GPU", ...alone.map(op => `${op.name}, ${op.unit}`)], ranksOn[node].map(rank => [`${run.slotOf[rank]}, rank ${rank}`, ...alone.map(op => op.values[rank] === null ? "not measured" : digits(op.values[rank]))])));
  if (facts.length) halves.push(listTable("What was found there", ["fact", "value"], facts));
  showDetail(byId("node-detail"), () => showNode(pairs, node),
    make("h3", {}, run.nodes[node]), make("p", {}, leafName(node) === null ? "leaf unknown" : "leaf: " + leafName(node)),
    list.length ? make("ul", { class: "plain" }, ...list) : make("p", {}, "No finding is about this node alone."),
    pairs ? gpuTable(pairs, node, node) : null, facts.length ? null : make("p", {}, "Nothing was found out about this node: unknown."), make("div", { class: "halves" }, ...halves));
}
