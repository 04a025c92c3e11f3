// The run: names, places and pairs, unpacked from the document in the page.
const run = JSON.parse(byId("data").textContent);
const numNodes = run.nodes.length, world = (run.nodeOf || []).length;
const natural = new Intl.Collator("en", { numeric: true });
const FAILED = 0xffff;

const leafName = node => run.leafOf[node] < 0 ? null : run.leaves[run.leafOf[node]];
const gpuName = rank => run.nodes[run.nodeOf[rank]] + " GPU " + run.slotOf[rank];
const endName = rank => "rank " + rank + ", " + gpuName(rank);

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), letter => letter.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

// Columns over all measured pairs: a < b by rank, code of the rate, route. start[a] is where the pairs of rank a begin.
async function unpackPairs() {
  const { count, low, step, data } = run.pairs;
  const buffer = await inflate(data);
  const perRank = new Uint32Array(buffer, 0, world), apart = new Uint32Array(buffer, 4 * world, count);
  const code = new Uint16Array(buffer, 4 * (world + count), count), route = new Uint8Array(buffer, 4 * (world + count) + 2 * count, count);
  const start = new Uint32Array(world + 1), a = new Uint32Array(count), b = new Uint32Array(count);
  for (let rank = 0, at = 0; rank < world; rank++) {
    for (let end = at + perRank[rank], last = rank; at < end; at++) { a[at] = rank; last = b[at] = last + apart[at]; }
    start[rank + 1] = at;
  }
  const rate = new Float64Array(count), ratio = new Float32Array(count);
  const rates = Float64Array.from({ length: FAILED + 1 }, (_, at) => at === FAILED ? NaN : Math.exp(low + step * at)), references = run.routes.map(one => one[1] || NaN);
  for (let i = 0; i < count; i++) {
    rate[i] = rates[code[i]];
    ratio[i] = rate[i] / references[route[i]]; // NaN of a pair that gave a rate: nobody can say
  }
  return { count, a, b, rate, ratio, route, start, failed: i => code[i] === FAILED, slowest: Math.exp(low), fastest: Math.exp(low + step * (FAILED - 1)) };
}

// The number of the pair of two ranks, -1: not measured.
function findPair(pairs, one, other) {
  const a = Math.min(one, other), b = Math.max(one, other);
  let from = pairs.start[a], to = pairs.start[a + 1];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (pairs.b[middle] < b) from = middle + 1; else to = middle;
  }
  return from < pairs.start[a + 1] && pairs.b[from] === b ? from : -1;
}

const sends = new Map((run.sends || []).map(([from, to, rate]) => [from * world + to, rate]));

// Worse first: failed, then the lower share of the reference, then the lower rate.
function isWorse(pairs, i, j) {
  if (j < 0) return true;
  if (pairs.failed(i) || pairs.failed(j)) return pairs.failed(i) && !pairs.failed(j);
  const one = pairs.ratio[i], other = pairs.ratio[j];
  if (one === one && other === other) return one < other; // NaN is not itself
  return one !== one && other !== other ? pairs.rate[i] < pairs.rate[j] : one === one;
}

// Node x node: the number of the worst pair between them, -1: none was measured; and how many were.
function worstBetween(pairs) {
  const worst = new Int32Array(numNodes * numNodes).fill(-1), measured = new Uint16Array(numNodes * numNodes);
  for (let i = 0; i < pairs.count; i++) {
    const one = run.nodeOf[pairs.a[i]], other = run.nodeOf[pairs.b[i]];
    for (const at of one === other ? [one * numNodes + one] : [one * numNodes + other, other * numNodes + one]) {
      measured[at]++;
      if (isWorse(pairs, i, worst[at])) worst[at] = i;
    }
  }
  return { worst, measured };
}

const ranksOn = (() => {
  const found = run.nodes.map(() => []);
  for (let rank = 0; rank < world; rank++) found[run.nodeOf[rank]].push(rank);
  for (const ranks of found) ranks.sort((p, q) => run.slotOf[p] - run.slotOf[q]);
  return found;
})();

// Nodes by leaf, those without a known leaf last, then by name as people count.
const nodeOrder = run.nodes.map((_, node) => node).sort((p, q) => {
  const [one, other] = [leafName(p), leafName(q)];
  if (one !== other) return one === null ? 1 : other === null ? -1 : natural.compare(one, other);
  return natural.compare(run.nodes[p], run.nodes[q]);
});
