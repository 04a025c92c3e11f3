// A matrix on a canvas: drawn for the pixels there are (the worst of the cells that share one), zoomed, pointed at, walked through by keys.
class Matrix {
  // model: size, cell(row, column) -> {rate, ratio, failed} | null, label(i), lines: levels, fine to coarse, of [{at, name}] (where a node or leaf begins), eachPair(act(row, column, number of the pair)), say(row, column) -> lines, open(row, column), same: whether row and column may be equal
  constructor(host, pairs, model) {
    Object.assign(this, { host, pairs, model, scale: run.routes.some(route => route[1]) ? "ratio" : "rate", way: "both", at: null });
    this.box = host.querySelector(".canvas");
    this.canvas = this.box.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.all();
    this.listen();
    host.hidden = false;
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  // one way has no reference of its own
  get scaleNow() { return this.way === "one" ? "rate" : this.scale; }

  all() { this.view = { x: 0, y: 0, span: this.model.size }; }

  listen() {
    const on = (name, act, how) => this.box.addEventListener(name, act, how);
    const scale = this.host.querySelector("[data-do=scale]"), way = this.host.querySelector("[data-do=way]");
    scale.value = this.scale;
    if (this.scale === "rate") scale.options[0].disabled = true;
    scale.onchange = () => { this.scale = scale.value; this.draw(); };
    this.host.querySelector("[data-only=sends]").hidden = !this.model.oneWay;
    way.onchange = () => { this.way = way.value; scale.disabled = this.way === "one"; this.draw(); };
    const order = this.host.querySelector("[data-do=order]");
    this.host.querySelector("[data-only=orders]").hidden = !this.model.arrange;
    if (this.model.arrange) order.value = this.model.arranged;
    order.onchange = () => { this.model.arrange(order.value); this.valuesOf = this.at = null; this.draw(); };
    for (const [name, by] of [["in", 0.5], ["out", 2]]) this.host.querySelector(`[data-do=${name}]`).onclick = () => this.zoom(by);
    this.host.querySelector("[data-do=all]").onclick = () => { this.all(); this.draw(); };
    on("pointermove", event => this.moved(event));
    on("pointerleave", () => tip(null));
    on("pointerdown", event => { if (event.button === 0 && this.cellAt(event)) this.drag = { x: event.clientX, y: event.clientY, view: { ...this.view }, far: false }; });
    addEventListener("pointerup", () => { const drag = this.drag; this.drag = null; this.dragged = Boolean(drag && drag.far); });
    on("click", event => { const cell = this.cellAt(event); if (cell && !this.dragged) { this.go(...cell); this.model.open(...cell); } });
    on("wheel", event => { if (event.ctrlKey || event.metaKey) { event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.cellAt(event, true)); } }, { passive: false });
    on("keydown", event => this.key(event));
    on("focus", () => { if (!this.at) this.go(...this.model.first()); else this.draw(); });
    on("blur", () => this.draw());
  }

  cellAt(event, exact) {
    const box = this.canvas.getBoundingClientRect(), { left, top, side, step } = this;
    const x = event.clientX - box.left - left, y = event.clientY - box.top - top;
    if (x < 0 || y < 0 || x >= side || y >= side) return null;
    const cell = [this.view.y + y / step, this.view.x + x / step];
    return exact ? cell : cell.map(at => Math.min(Math.floor(at), this.model.size - 1));
  }

  // The cell that a pixel shows where several share it: the worst.
  shownAt(row, column) {
    if (this.step >= 1) return [row, column];
    const reach = Math.ceil(1 / this.step);
    let best = null, found = [row, column];
    for (let i = row; i < Math.min(row + reach, this.model.size); i++) {
      for (let j = column; j < Math.min(column + reach, this.model.size); j++) {
        const value = this.badness(i, j);
        if (value !== null && (best === null || value < best)) { best = value; found = [i, j]; }
      }
    }
    return found;
  }

  moved(event) {
    if (this.drag) {
      const x = event.clientX - this.drag.x, y = event.clientY - this.drag.y;
      if (this.drag.far || Math.hypot(x, y) > 4) {
        this.drag.far = true;
        Object.assign(this.view, { x: this.drag.view.x - x / this.step, y: this.drag.view.y - y / this.step });
        this.keepInside();
        return tip(null), this.draw();
      }
    }
    const cell = this.cellAt(event);
    tip(cell && this.model.say(...this.shownAt(...cell), this.way), event);
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }, far = event.shiftKey ? 8 : 1;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (steps[event.key]) this.go(this.at[0] + far * steps[event.key][0], this.at[1] + far * steps[event.key][1]);
    else if (event.key === "Home") this.go(this.at[0], 0);
    else if (event.key === "End") this.go(this.at[0], this.model.size - 1);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5, this.at.map(at => at + 0.5));
    else if (event.key === "-") this.zoom(2, this.at.map(at => at + 0.5));
    else if (event.key === "0") { this.all(); this.draw(); }
    else if (event.key === "Enter") this.model.open(...this.at);
    else return;
    event.preventDefault();
  }

  // Puts the cursor on a cell, brings it into view, and says what it is.
  go(row, column) {
    const last = this.model.size - 1, { view } = this;
    this.at = [row, column].map(at => Math.max(0, Math.min(last, at)));
    for (const [axis, at] of [["y", this.at[0]], ["x", this.at[1]]]) {
      if (at < view[axis]) view[axis] = at;
      if (at + 1 > view[axis] + view.span) view[axis] = at + 1 - view.span;
    }
    this.keepInside();
    const [title, ...lines] = this.model.say(...this.at, this.way);
    this.host.querySelector(".at").replaceChildren(make("b", {}, title), make("br"), lines.join(" \u00b7 "));
    this.draw();
  }

  // Zooms in so far that a cell can be seen, and puts the cursor there.
  reveal(row, column) {
    if (this.step < 8) {
      this.view.span = Math.min(this.model.size, Math.max(16, this.side / 14));
      Object.assign(this.view, { y: row - this.view.span / 2, x: column - this.view.span / 2 });
    }
    this.go(row, column);
    this.box.scrollIntoView({ block: "nearest" });
    this.box.focus({ preventScroll: true });
  }

  zoom(by, around) {
    const { view } = this, [row, column] = around || [view.y + view.span / 2, view.x + view.span / 2];
    const span = Math.max(Math.min(4, this.model.size), Math.min(this.model.size, view.span * by)), share = span / view.span;
    this.view = { x: column - (column - view.x) * share, y: row - (row - view.y) * share, span };
    this.keepInside();
    this.draw();
  }

  keepInside() {
    for (const axis of ["x", "y"]) this.view[axis] = Math.max(0, Math.min(this.model.size - this.view.span, this.view[axis]));
  }

  cell(row, column) { return this.way === "one" ? this.model.oneWay(row, column) : this.model.cell(row, column); }

  // Smaller is worse; null: not measured.
  badness(row, column) {
    const cell = this.cell(row, column);
    if (!cell) return null;
    if (cell.failed) return -1;
    const value = onScale(this.pairs, this.scaleNow, cell.rate, cell.ratio);
    return value === null ? 2 : value;
  }

  // of a pair by its number
  badnessOf(i) {
    if (this.pairs.failed(i)) return -1;
    const value = onScale(this.pairs, this.scaleNow, this.pairs.rate[i], this.pairs.ratio[i]);
    return value === null ? 2 : value;
  }

  draw() {
    const width = this.box.clientWidth, density = devicePixelRatio || 1;
    if (!width) return;
    this.font = `${width < 420 ? 10 : 11}px ${getComputedStyle(document.body).fontFamily}`;
    this.pen.font = this.font;
    const names = Array.from({ length: Math.min(this.model.size, 64) }, (_, i) => this.pen.measureText(this.model.label(i)).width);
    this.left = Math.floor(Math.min(Math.max(...names, 30) + 10, width * 0.24, 130));
    this.top = this.model.top ? 38 : 24;
    this.side = Math.floor(Math.min(width - this.left - 1, 72 * this.model.size));
    this.step = this.side / this.view.span;
    this.canvas.width = width * density;
    this.canvas.height = (this.side + this.top + 1) * density;
    this.pen.setTransform(density, 0, 0, density, 0, 0);
    this.pen.font = this.font;
    this.hatch();
    this.drawCells(density);
    this.drawLines();
    this.drawNames();
    this.drawCursor();
    Object.assign(this.host.dataset, { size: this.model.size, frame: [this.left, this.top, this.side].join(" ") });
    const key = `${this.scaleNow} ${theme()}`;
    if (this.legendOf !== key) legend(this.host.querySelector(".legend"), this.pairs, this.scaleNow);
    this.legendOf = key;
  }

  hatch() {
    const { pen, left, top, side } = this;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, side, side);
    pen.clip();
    pen.fillStyle = css("--cell");
    pen.fillRect(left, top, side, side);
    pen.strokeStyle = css("--hatch");
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = -side; at < side; at += 6) { pen.moveTo(left + at, top + side); pen.lineTo(left + at + side, top); }
    pen.stroke();
    pen.restore();
  }

  colour(value) {
    if (value < 0) return this.failColour;
    return value === 2 ? this.plainColour : shade(value, this.stops);
  }

  drawCells(density) {
    this.stops = stopsOf(this.scaleNow);
    this.failColour = parts(FAIL_COLOUR[this.scaleNow][theme()]);
    this.plainColour = parts(css("--skip-bg"));
    if (this.step >= 3) return this.drawLarge();
    const pixels = Math.max(1, Math.floor(this.side * density)), per = this.view.span / pixels;
    const image = new ImageData(pixels, pixels), dots = new Uint32Array(image.data.buffer), colours = new Map(), values = this.values();
    const edge = start => Uint32Array.from({ length: pixels + 1 }, (_, at) => Math.min(this.model.size, Math.floor(start + at * per + 1e-9)));
    const rows = edge(this.view.y), columns = edge(this.view.x), { size } = this.model;
    for (let y = 0; y < pixels; y++) {
      for (let x = 0; x < pixels; x++) {
        let worst = 9;
        for (let i = rows[y], to = Math.max(i + 1, rows[y + 1]); i < to && i < size; i++) {
          for (let j = columns[x], end = Math.max(j + 1, columns[x + 1]); j < end && j < size; j++) worst = Math.min(worst, values[i * size + j]);
        }
        if (worst === 9) continue;
        const step = Math.round(worst * 512);
        let colour = colours.get(step);
        if (!colour) {
          const [red, green, blue] = this.colour(worst);
          colours.set(step, colour = new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0]);
        }
        dots[y * pixels + x] = colour;
      }
    }
    const under = new OffscreenCanvas(pixels, pixels);
    under.getContext("2d").putImageData(image, 0, 0);
    this.pen.imageSmoothingEnabled = false;
    this.pen.drawImage(under, this.left, this.top, this.side, this.side);
  }

  // badness of every cell, 9: not measured; kept until scale or way change
  values() {
    const key = `${this.scaleNow} ${this.way}`, { size } = this.model;
    if (this.valuesOf !== key) {
      this.valuesOf = key;
      this.kept = new Float32Array(size * size).fill(9);
      if (this.way === "one") {
        for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) { const value = this.badness(i, j); if (value !== null) this.kept[i * size + j] = value; }
      } else this.model.eachPair((row, column, i) => { this.kept[row * size + column] = this.badnessOf(i); });
    }
    return this.kept;
  }

  drawLarge() {
    const { pen, view, step, left, top, side, model } = this, gap = step > 6 ? 1 : 0, ground = css("--bg");
    pen.save();
    pen.beginPath();
    pen.rect(left, top, side, side);
    pen.clip();
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let i = Math.floor(view.y); i < Math.min(model.size, view.y + view.span); i++) {
      for (let j = Math.floor(view.x); j < Math.min(model.size, view.x + view.span); j++) {
        const x = left + (j - view.x) * step, y = top + (i - view.y) * step, self = i === j && !model.same;
        const cell = self ? null : this.cell(i, j);
        if (self) { pen.fillStyle = ground; pen.fillRect(x, y, step, step); }
        if (!cell) continue;
        if (gap) { pen.fillStyle = ground; pen.fillRect(x, y, step, step); }
        const colour = this.colour(this.badness(i, j));
        pen.fillStyle = `rgb(${colour})`;
        pen.fillRect(x, y, step - gap, step - gap);
        if (step < 9) continue;
        pen.fillStyle = inkOn(colour);
        if (cell.failed) pen.fillText("\u00d7", x + step / 2, y + step / 2);
        else if (step > 38) pen.fillText(this.figure(cell), x + step / 2, y + step / 2, step - 4);
      }
    }
    pen.restore();
  }

  figure(cell) {
    if (this.scaleNow === "ratio") return Number.isNaN(cell.ratio) ? "?" : percent(cell.ratio);
    return digits(cell.rate / (this.pairs.fastest >= 1e8 ? 1e9 : 1e6));
  }

  drawLines() {
    const { pen, view, step, left, top, side } = this;
    pen.fillStyle = css("--ink");
    pen.textBaseline = "middle";
    const lines = this.model.lines.find(level => step * this.model.size / level.length >= 20) || this.model.lines[this.model.lines.length - 1];
    for (const [number, line] of lines.entries()) {
      const next = lines[number + 1], x = left + (line.at - view.x) * step, y = top + (line.at - view.y) * step;
      const end = left + ((next ? next.at : this.model.size) - view.x) * step;
      pen.globalAlpha = 0.75;
      if (line.at && x > left && x < left + side) pen.fillRect(x - 0.5, top - 8, 1, side + 8);
      if (line.at && y > top && y < top + side) pen.fillRect(left - 8, y - 0.5, side + 8, 1);
      pen.globalAlpha = 1;
      const from = Math.max(x, left), to = Math.min(end, left + side), room = to - from - 6;
      if (room > 14 && pen.measureText(line.name).width <= room) { pen.textAlign = "center"; pen.fillText(line.name, (from + to) / 2, 11); }
    }
    pen.strokeStyle = css("--line");
    pen.lineWidth = 1;
    pen.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
  }

  drawNames() {
    const { pen, view, step, left, top, side, model } = this, every = Math.max(1, Math.ceil(14 / step));
    pen.fillStyle = css("--soft");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let i = Math.ceil(view.y / every) * every; i < Math.min(model.size, view.y + view.span); i += every) {
      const y = top + (i - view.y + 0.5) * step;
      if (y > top + 4 && y < top + side - 2) pen.fillText(model.label(i), left - 6, y, left - 8);
    }
    if (model.top && step > 20) {
      pen.textAlign = "center";
      for (let j = Math.ceil(view.x); j < Math.min(model.size, view.x + view.span); j++) pen.fillText(model.top(j), left + (j - view.x + 0.5) * step, top - 9, step);
    }
  }

  drawCursor() {
    if (!this.at) return;
    const { pen, view, step, left, top, side } = this, [y, x] = this.at, grow = Math.max(0, 7 - step) / 2;
    pen.save();
    pen.beginPath();
    pen.rect(left - 4, top - 4, side + 8, side + 8);
    pen.clip();
    const at = [left + (x - view.x) * step - grow, top + (y - view.y) * step - grow, step + 2 * grow, step + 2 * grow];
    pen.lineWidth = 4;
    pen.strokeStyle = css("--bg");
    pen.strokeRect(...at);
    pen.lineWidth = 2;
    pen.strokeStyle = css("--focus");
    pen.strokeRect(...at);
    pen.restore();
  }
}

// The words beside the pointer.
function tip(lines, event) {
  const box = byId("tip");
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(make("b", {}, lines[0]), ...lines.slice(1).flatMap(line => [make("br"), line]));
  const { width, height } = box.getBoundingClientRect();
  box.style.left = Math.max(4, Math.min(innerWidth - width - 8, event.clientX + 14)) + "px";
  box.style.top = (event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18) + "px";
}
