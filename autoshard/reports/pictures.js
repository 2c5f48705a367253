"use strict";
/* Draws the canvases of a page from its JSON. autoshard.draw(root, data) draws those below an element; data has a value
   for each `data-picture`. Every picture has marks that can be pointed at or walked with the arrow keys; what they are
   is told in the line below, which screen readers read. */
(() => {
  const COLORS = 10;
  // numbers as autoshard/units.py has them on the rest of a page
  const three = (x) => {
    const size = Math.abs(x);
    if (size >= 1e15) return x.toExponential(2);
    return size >= 99.95 ? Math.round(x).toLocaleString("en") : x.toFixed(size >= 9.995 ? 1 : 2);
  };
  const with_unit = (value, units) => {
    const [unit, size] = units.find(([, size]) => Math.abs(value) >= 0.9995 * size) || units.at(-1);
    return `${three(value / size)} ${unit}`;
  };
  const seconds = (s) => Math.abs(s) < 5e-9 ? "0 s" : with_unit(s, [["s", 1], ["ms", 1e-3], ["us", 1e-6]]);
  const bytes = (b) => Math.abs(b) < 999.5 ? `${Math.round(b)} B` : with_unit(b, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]);
  const clamp = (x, low, high) => Math.min(Math.max(x, low), high);

  function palette(element) {
    const style = getComputedStyle(element), read = (name) => style.getPropertyValue(`--${name}`).trim();
    return { fore: read("fore"), dim: read("dim"), line: read("line"), back: read("back"), bubble: read("bubble"),
      limit: read("limit"), font: "12px system-ui, sans-serif", c: [...Array(COLORS).keys()].map((i) => read(`c${i}`)) };
  }

  /* One canvas. make(host) returns {height(width), draw(ctx, width, height, colors), at(x, y), tell(mark), step(mark, key)
     -> mark, zoom(x, factor), pan(pixels), all()}; the last three are optional. A mark is a number or null. Returns what
     draws it at once. */
  function picture(canvas, make) {
    const figure = canvas.closest("figure"), told = figure.querySelector(".told"), host = { mark: null };
    const choices = Object.fromEntries([...figure.querySelectorAll("[data-choice]")].map((one) => [one.dataset.choice, one]));
    host.choice = (name) => choices[name] && (choices[name].type === "checkbox" ? choices[name].checked : choices[name].value);
    const self = make(host);
    let width = 0, height = 0, queued = false;
    function draw() {
      queued = false;
      const scale = window.devicePixelRatio || 1;
      width = canvas.clientWidth;
      height = self.height(width);
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const ctx = canvas.getContext("2d"), colors = palette(canvas);
      ctx.scale(scale, scale);
      ctx.font = colors.font;
      ctx.fillStyle = colors.back;
      ctx.fillRect(0, 0, width, height);
      self.draw(ctx, width, height, colors);
      canvas.dataset.drawn = Number(canvas.dataset.drawn || 0) + 1;
    }
    const soon = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };
    function show(mark) {
      if (mark === host.mark) return;
      host.mark = mark;
      told.textContent = mark === null ? "" : self.tell(mark);
      soon();
    }
    let held = null;
    canvas.addEventListener("pointermove", (event) => {
      if (held !== null && self.pan) { self.pan(event.offsetX - held); held = event.offsetX; soon(); return; }
      show(self.at(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointerdown", (event) => { held = event.offsetX; show(self.at(event.offsetX, event.offsetY)); });
    for (const name of ["pointerup", "pointerleave", "pointercancel"]) canvas.addEventListener(name, () => { held = null; });
    canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) show(null); });
    canvas.addEventListener("wheel", (event) => {
      if (!self.zoom || document.activeElement !== canvas && !event.ctrlKey) return;  // else the page scrolls
      event.preventDefault();
      self.zoom(event.offsetX, Math.exp(-event.deltaY / 300));
      soon();
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const key = event.key;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (key.startsWith("Arrow")) show(self.step(host.mark, key));
      else if (key === "Escape") show(null);
      else if (self.zoom && (key === "+" || key === "=")) self.zoom(width / 2, 1.5);
      else if (self.zoom && key === "-") self.zoom(width / 2, 1 / 1.5);
      else if (self.zoom && key === "0") self.all();
      else return;
      event.preventDefault();
      soon();
    });
    for (const one of Object.values(choices)) one.addEventListener("change", () => { host.mark = null; told.textContent = ""; if (self.changed) self.changed(); soon(); });
    new ResizeObserver(soon).observe(canvas);  // draws it for the first time too
    canvas.addEventListener("palette", soon);
    return draw;
  }

  /* Calls start once the canvas is about to be seen: a page is there before its pictures are drawn. What is seen from
     the start is drawn at once, since a picture of the page may be taken of its first frame. Paper waits for nothing
     either: before it is printed, the picture is drawn. */
  function when_near(canvas, start) {
    const box = canvas.getBoundingClientRect();
    if (box.width > 0 && box.top < innerHeight && box.bottom > 0) { start()(); return; }
    const observer = new IntersectionObserver((entries) => {
      if (entries.some((one) => one.isIntersecting)) { observer.disconnect(); start(); }
    }, { rootMargin: "600px" });
    observer.observe(canvas);
    addEventListener("beforeprint", () => { if (canvas.isConnected && !canvas.dataset.drawn) { observer.disconnect(); start()(); } }, { once: true });
  }

  /* Devices: chips of squares in nodes. A rank's place along each axis follows from the order of axes. */
  function machine(data) {
    const sizes = data.order.map((axis) => axis[1]), names = data.order.map((axis) => axis[0]);
    const count = data.shown * data.per_node;
    function place(rank) {
      if (!data.fold) return rank;
      const size = data.fold.per_node / data.fold.rows.length, inside = rank % data.fold.per_node;
      return rank - inside + data.fold.rows.indexOf(Math.floor(inside / size)) * size + inside % size;
    }
    function coordinates(rank) {
      let rest = place(rank);
      const index = new Array(sizes.length);
      for (let i = sizes.length - 1; i >= 0; i--) { index[i] = rest % sizes[i]; rest = Math.floor(rest / sizes[i]); }
      return index;
    }
    const where = Array.from({ length: count }, (_, rank) => coordinates(rank));
    const chips = data.per_node / data.per_chip;
    const chipWide = data.per_chip <= 2 ? data.per_chip : Math.ceil(Math.sqrt(data.per_chip));
    const chipHigh = Math.ceil(data.per_chip / chipWide);
    const across = Math.max(1, 2 ** Math.ceil(Math.log2(Math.sqrt(chips * chipHigh / chipWide))));
    const down = Math.ceil(chips / across);
    const CELL = 13, GAP = 3, PAD = 6, TITLE = 18;
    const nodeWide = Math.max(64, across * (chipWide * CELL + GAP) + 2 * PAD), nodeHigh = TITLE + down * (chipHigh * CELL + GAP) + PAD;
    let columns = 1;
    function corner(rank) {
      const node = Math.floor(rank / data.per_node), inside = rank % data.per_node;
      const chip = Math.floor(inside / data.per_chip), core = inside % data.per_chip;
      return [(node % columns) * (nodeWide + 8) + 8 + PAD + (chip % across) * (chipWide * CELL + GAP) + (core % chipWide) * CELL,
        Math.floor(node / columns) * (nodeHigh + 8) + 8 + TITLE + Math.floor(chip / across) * (chipHigh * CELL + GAP) + Math.floor(core / chipWide) * CELL];
    }
    const shares = (one, other) => names.filter((_, i) => sizes[i] > 1 && one.every((value, j) => j === i || value === other[j]));
    return (host) => ({
      height(width) {
        columns = Math.max(1, Math.floor((width - 8) / (nodeWide + 8)));
        return Math.ceil(data.shown / columns) * (nodeHigh + 8) + 8;
      },
      draw(ctx, width, height, colors) {
        const by = Math.max(0, names.indexOf(host.choice("color"))), mine = host.mark === null ? null : where[host.mark];
        for (let node = 0; node < data.shown; node++) {
          const x = (node % columns) * (nodeWide + 8) + 8, y = Math.floor(node / columns) * (nodeHigh + 8) + 8;
          ctx.strokeStyle = colors.line;
          ctx.strokeRect(x + .5, y + .5, nodeWide, nodeHigh);
          ctx.fillStyle = colors.dim;
          ctx.fillText(`node ${node}`, x + PAD, y + 13);
        }
        for (let rank = 0; rank < count; rank++) {
          const [x, y] = corner(rank), axes = mine ? shares(mine, where[rank]) : [];
          ctx.globalAlpha = mine && !axes.length && rank !== host.mark ? .3 : 1;
          ctx.fillStyle = colors.c[where[rank][by] % COLORS];
          ctx.fillRect(x, y, CELL - 1, CELL - 1);
          ctx.globalAlpha = 1;
          if (rank === host.mark) { ctx.lineWidth = 3; ctx.strokeStyle = colors.fore; ctx.strokeRect(x, y, CELL - 1, CELL - 1); ctx.lineWidth = 1; }
          else if (axes.length) { ctx.strokeStyle = colors.fore; ctx.strokeRect(x + .5, y + .5, CELL - 2, CELL - 2); }
        }
      },
      at(x, y) {
        for (let rank = 0; rank < count; rank++) { const [a, b] = corner(rank); if (x >= a && x < a + CELL && y >= b && y < b + CELL) return rank; }
        return null;
      },
      tell(rank) {
        const inside = rank % data.per_node, index = where[rank];
        const places = names.flatMap((name, i) => sizes[i] > 1 ? [`${name} ${index[i]} of ${sizes[i]}`] : []);
        const groups = names.flatMap((name, i) => {
          if (sizes[i] < 2) return [];
          const members = where.flatMap((other, r) => other.every((value, j) => j === i || value === index[j]) ? [r] : []);
          const some = members.length > 8 ? `${members.slice(0, 6).join(", ")} ... ${members[members.length - 1]}` : members.join(", ");
          return [`${name} with ${some}${members.length < sizes[i] ? " and ranks not drawn" : ""} (${data.links[name]})`];
        });
        return `Rank ${rank}: node ${Math.floor(rank / data.per_node)}, chip ${Math.floor(inside / data.per_chip)}, device ${inside % data.per_chip}; ${places.join(", ") || "alone"}. Groups: ${groups.join("; ") || "none"}.`;
      },
      step(mark, key) {
        if (mark === null) return 0;
        const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: data.per_node, ArrowUp: -data.per_node }[key];
        return clamp(mark + by, 0, count - 1);
      },
    });
  }

  /* Rows of spans on a clock. A mark is row * 1e6 + place. */
  function timeline(data) {
    const rows = data.rows.map((row) => {
      const spans = [];
      for (let i = 0, at = 0; i < row.spans.length; i += 5) {
        const start = at + row.spans[i], end = start + row.spans[i + 1];
        spans.push([start, end, row.spans[i + 2], row.spans[i + 3], row.spans[i + 4]]);
        at = end;
      }
      return spans;
    });
    let low = 0, high = data.ticks, wide = 1, left = 0;
    const LEFT = 58, TOP = 22, NARROW = 2, COLUMN = 4, high_row = rows.length > 40 ? 12 : 20;
    const x_of = (tick) => left + (tick - low) / (high - low) * wide;
    const tick_of = (x) => low + (x - left) / wide * (high - low);
    const time = (ticks) => seconds(ticks / data.ticks * data.total_s);
    function bound(start, length) {
      length = clamp(length, data.ticks / 20000, data.ticks);
      low = clamp(start, 0, data.ticks - length);
      high = low + length;
    }
    /* Pieces [from, to, kind, share] that are too narrow to stand side by side: each column has its kinds one above the
       other, as high as their shares of its time; what is left below them is the bubble. broad: pieces that are drawn
       over the columns. */
    function stacked(ctx, narrow, broad, y, colors) {
      const columns = new Map();
      const add = ([from, to, kind, share]) => {
        for (let at = left + Math.floor((Math.max(from, left) - left) / COLUMN) * COLUMN; at < Math.min(to, left + wide); at += COLUMN) {
          const inside = Math.min(to, at + COLUMN) - Math.max(from, at), kinds = columns.get(at) || new Map();
          kinds.set(kind, (kinds.get(kind) || 0) + inside * share);
          columns.set(at, kinds);
        }
      };
      narrow.forEach(add);
      const meets = (x) => columns.has(left + Math.floor((x - left) / COLUMN) * COLUMN);
      for (const [from, to, , share] of broad) if (meets(from) || meets(to)) add([from, to, -1, share]);
      for (const [at, kinds] of columns) {
        const to = Math.min(at + COLUMN, x_of(data.end)), free = to - at - (kinds.get(-1) || 0);
        let above = 0;
        for (const kind of [...kinds.keys()].filter((one) => one >= 0).sort((a, b) => a - b)) {
          const top = Math.round(above);
          above += (high_row - 2) * kinds.get(kind) / free;
          ctx.fillStyle = colors.c[kind % COLORS];
          ctx.fillRect(at, y + top, to - at, Math.round(above) - top);
        }
      }
    }
    function first_after(spans, tick) {
      let a = 0, b = spans.length;
      while (a < b) { const middle = (a + b) >> 1; if (spans[middle][1] < tick) a = middle + 1; else b = middle; }
      return a;
    }
    return (host) => ({
      height: () => TOP + rows.length * high_row + 8,
      draw(ctx, width, height, colors) {
        left = LEFT;
        wide = width - LEFT - 8;
        ctx.fillStyle = colors.dim;
        ctx.textBaseline = "middle";
        const ends = [[low, "left", left], [high, "right", left + wide]];
        if (wide > 320) ends.push([(low + high) / 2, "center", left + wide / 2]);
        for (const [tick, align, x] of ends) { ctx.textAlign = align; ctx.fillText(time(tick), x, 11); }
        ctx.textAlign = "left";
        rows.forEach((spans, row) => {
          const y = TOP + row * high_row;
          ctx.fillStyle = colors.dim;
          ctx.textAlign = "left";
          if (high_row > 14 || row % 2 === 0) ctx.fillText(data.rows[row].name.match(/(rank \d+)?/g).join("") || data.rows[row].name.slice(0, 8), 4, y + high_row / 2);
          ctx.save();
          ctx.beginPath();
          ctx.rect(left, y, wide, high_row);
          ctx.clip();
          ctx.strokeStyle = colors.bubble;
          ctx.save();
          ctx.beginPath();
          ctx.rect(left, y, x_of(data.end) - left, high_row);
          ctx.clip();
          ctx.beginPath();
          for (let x = left - high_row; x < left + wide; x += 6) { ctx.moveTo(x, y + high_row - 2); ctx.lineTo(x + high_row - 2, y); }
          ctx.stroke();
          ctx.restore();
          const mix = data.rows[row].mix, narrow = [], broad = [];
          for (let i = first_after(spans, low); i < spans.length && spans[i][0] <= high; i++) {
            const [start, end, kind, microbatch] = spans[i], x = x_of(start), to = x_of(end);
            const several = kind === data.several ? mix : [[kind, 1]], pieces = to - x < NARROW || to - x < 4 * COLUMN && several.length > 1 ? narrow : broad;
            let top = 0;
            for (const [one, share] of several) { pieces.push([x, to, one, share, microbatch, top]); top += share; }
          }
          stacked(ctx, narrow, broad, y, colors);
          for (const [x, to, kind, share, microbatch, top] of broad) {
            ctx.fillStyle = colors.c[kind % COLORS];
            ctx.fillRect(x, y + top * (high_row - 2), to - x, share * (high_row - 2));
            ctx.fillStyle = colors.back;
            ctx.fillRect(to - 1, y, 1, high_row - 2);
            if (to - x > 30 && microbatch >= 0 && high_row > 14) { ctx.textAlign = "center"; ctx.fillText(String(microbatch), (x + to) / 2, y + high_row / 2 - 1); }
          }
          const i = host.mark === null || host.mark < 0 ? -1 : host.mark - row * 1e6;
          if (i >= 0 && i < spans.length) { const [x, to] = [x_of(spans[i][0]), x_of(spans[i][1])]; ctx.lineWidth = 2; ctx.strokeStyle = colors.fore; ctx.strokeRect(x, y + 1, Math.max(to - x, 2), high_row - 4); ctx.lineWidth = 1; }
          ctx.restore();
        });
        ctx.textBaseline = "alphabetic";
      },
      at(x, y) {
        const row = Math.floor((y - TOP) / high_row), tick = tick_of(x);
        if (row < 0 || row >= rows.length || x < left || tick > data.end) return null;
        const i = first_after(rows[row], tick);
        if (i < rows[row].length && rows[row][i][0] <= tick) return row * 1e6 + i;
        return -(row * 1e6 + i) - 1;
      },
      tell(mark) {
        const row = Math.floor((mark < 0 ? -mark - 1 : mark) / 1e6), i = (mark < 0 ? -mark - 1 : mark) % 1e6, spans = rows[row];
        if (mark < 0) {
          const start = i ? spans[i - 1][1] : 0, end = i < spans.length ? spans[i][0] : data.end;
          return `${data.rows[row].name}: bubble, it waits ${time(end - start)}, from ${time(start)} to ${time(end)}`;
        }
        const [start, end, kind, microbatch, chunk] = spans[i];
        const of = microbatch < 0 ? "" : ` of microbatch ${microbatch}, chunk ${chunk}`;
        return `${data.rows[row].name}: ${data.kinds[kind]}${of}, ${time(end - start)}, from ${time(start)} to ${time(end)}`;
      },
      step(mark, key) {
        if (mark === null || mark < 0) return rows[0] && rows[0].length ? 0 : null;
        let row = Math.floor(mark / 1e6), i = mark % 1e6;
        if (key === "ArrowRight") i++;
        if (key === "ArrowLeft") i--;
        if (key === "ArrowDown" || key === "ArrowUp") {
          const tick = rows[row][i][0];
          row = clamp(row + (key === "ArrowDown" ? 1 : -1), 0, rows.length - 1);
          i = first_after(rows[row], tick);
        }
        i = clamp(i, 0, rows[row].length - 1);
        const [start, end] = rows[row][i];
        if (start < low || end > high) bound(start - (high - low) / 2, high - low);
        return row * 1e6 + i;
      },
      zoom(x, factor) { const tick = clamp(tick_of(x), low, high), length = (high - low) / factor; bound(tick - (tick - low) / factor, length); },
      pan(pixels) { bound(low - pixels / wide * (high - low), high - low); },
      all() { bound(0, data.ticks); },
    });
  }

  /* Layouts by step time and memory, both on logarithmic scales. A mark is the place of a layout; -1 is the plan. */
  function candidates(data) {
    const count = data.tp.length, front = new Set(data.front);
    const value = (name, i) => data[name].words ? data[name].words[data[name].which[i]] : data[name][i];
    const LEFT = 62, BOTTOM = 42, TOP = 12, RIGHT = 14;
    let shown = [], x_range = [1, 2], y_range = [1, 2], view = null, area = [1, 1];
    const log = Math.log;
    const x_of = (s) => LEFT + (log(s) - x_range[0]) / (x_range[1] - x_range[0]) * area[0];
    const y_of = (b) => TOP + (1 - (log(b) - y_range[0]) / (y_range[1] - y_range[0])) * area[1];
    return (host) => {
      function select() {
        shown = [];
        for (let i = 0; i < count; i++) {
          if (!data.fits[i] && !host.choice("unfit")) continue;
          if (data.filters.every((name) => { const wanted = host.choice(name); return !wanted || String(value(name, i)) === wanted; })) shown.push(i);
        }
        shown.sort((a, b) => data.step_time_s[a] - data.step_time_s[b]);
        const range = (values) => { const a = Math.min(...values), b = Math.max(...values); return [log(a) - .06, log(b) + .06]; };
        x_range = range([data.chosen.step_time_s, ...shown.map((i) => data.step_time_s[i])]);
        y_range = range([data.chosen.memory_bytes, data.capacity_bytes, ...shown.map((i) => data.memory_bytes[i])]);
        view = [...x_range];
      }
      select();
      const place = (mark) => mark === -1 ? [data.chosen.step_time_s, data.chosen.memory_bytes] : [data.step_time_s[mark], data.memory_bytes[mark]];
      return {
        changed: select,
        height: (width) => clamp(width * .55, 320, 520),
        draw(ctx, width, height, colors) {
          area = [width - LEFT - RIGHT, height - TOP - BOTTOM];
          ctx.fillStyle = colors.dim;
          ctx.strokeStyle = colors.line;
          ctx.textBaseline = "top";
          const steps = Math.max(2, Math.floor(area[0] / 110));
          for (let i = 0; i <= steps; i++) {
            const at = x_range[0] + (x_range[1] - x_range[0]) * i / steps, x = LEFT + area[0] * i / steps;
            ctx.beginPath(); ctx.moveTo(x, TOP); ctx.lineTo(x, TOP + area[1]); ctx.stroke();
            ctx.textAlign = i === 0 ? "left" : i === steps ? "right" : "center";
            ctx.fillText(seconds(Math.exp(at)), x, TOP + area[1] + 5);
          }
          ctx.textAlign = "center";
          ctx.fillText("step time", LEFT + area[0] / 2, height - 17);
          ctx.textBaseline = "middle";
          ctx.textAlign = "right";
          for (let i = 0; i <= 4; i++) {
            const y = TOP + area[1] * (1 - i / 4);
            ctx.beginPath(); ctx.moveTo(LEFT, y); ctx.lineTo(LEFT + area[0], y); ctx.stroke();
            ctx.fillText(bytes(Math.exp(y_range[0] + (y_range[1] - y_range[0]) * i / 4)), LEFT - 5, clamp(y, 8, height));
          }
          ctx.save();
          ctx.beginPath(); ctx.rect(LEFT, TOP, area[0], area[1]); ctx.clip();
          ctx.strokeStyle = colors.limit;
          ctx.beginPath(); ctx.moveTo(LEFT, y_of(data.capacity_bytes)); ctx.lineTo(LEFT + area[0], y_of(data.capacity_bytes)); ctx.stroke();
          const by = host.choice("color") || "tp", kinds = [...new Set(shown.map((i) => value(by, i)))].sort((a, b) => a > b ? 1 : -1);
          for (let k = shown.length - 1; k >= 0; k--) {
            const i = shown[k], x = x_of(data.step_time_s[i]), y = y_of(data.memory_bytes[i]);
            ctx.fillStyle = ctx.strokeStyle = colors.c[kinds.indexOf(value(by, i)) % COLORS];
            ctx.globalAlpha = data.fits[i] ? .85 : .35;
            ctx.beginPath(); ctx.arc(x, y, front.has(i) ? 4 : 2.5, 0, 7);
            if (data.step_time_is_bound[i]) ctx.stroke(); else ctx.fill();
          }
          ctx.globalAlpha = 1;
          ctx.strokeStyle = colors.fore;
          const stairs = (marks) => {
            let last = 0;
            ctx.beginPath();
            marks.forEach((i, k) => {
              const x = x_of(data.step_time_s[i]), y = y_of(data.memory_bytes[i]);
              if (k) ctx.lineTo(x, last); else ctx.moveTo(x, y);
              ctx.lineTo(x, y);
              last = y;
            });
            ctx.stroke();
          };
          const best = data.front.filter((i) => shown.includes(i));
          let least = Infinity;
          stairs(best.filter((i) => !data.step_time_is_bound[i]));
          ctx.setLineDash([2, 3]);
          stairs(best.filter((i) => {
            const less = data.memory_bytes[i] < least;
            least = Math.min(least, data.memory_bytes[i]);
            return less;
          }));
          ctx.setLineDash([]);
          ctx.fillStyle = colors.fore;
          const [sx, sy] = [x_of(data.chosen.step_time_s), y_of(data.chosen.memory_bytes)];
          ctx.beginPath();
          for (let k = 0; k < 10; k++) { const r = k % 2 ? 4 : 9, angle = Math.PI * (k / 5 - .5); ctx.lineTo(sx + r * Math.cos(angle), sy + r * Math.sin(angle)); }
          ctx.fill();
          if (host.mark !== null) { const [s, b] = place(host.mark); ctx.lineWidth = 2; ctx.beginPath(); ctx.arc(x_of(s), y_of(b), 8, 0, 7); ctx.stroke(); ctx.lineWidth = 1; }
          ctx.restore();
          ctx.textAlign = "left";
          ctx.textBaseline = "top";
          let x = LEFT + 6;
          kinds.slice(0, 12).forEach((kind) => {
            const text = `${by} ${kind}`.slice(0, 24), wide = ctx.measureText(text).width + 24;
            if (x + wide > LEFT + area[0]) return;
            ctx.fillStyle = colors.back; ctx.fillRect(x - 2, TOP + 2, wide, 16);
            ctx.fillStyle = colors.c[kinds.indexOf(kind) % COLORS]; ctx.fillRect(x, TOP + 5, 10, 10);
            ctx.fillStyle = colors.fore; ctx.fillText(text, x + 14, TOP + 4);
            x += wide;
          });
          ctx.textBaseline = "alphabetic";
        },
        at(x, y) {
          let best = null, near = 12;
          for (const mark of [-1, ...shown]) { const [s, b] = place(mark), d = Math.hypot(x_of(s) - x, y_of(b) - y); if (d < near) { near = d; best = mark; } }
          return best;
        },
        tell(mark) {
          const [s, b] = place(mark);
          if (mark === -1) return `The plan: ${data.chosen.layout}; ${seconds(s)}, ${bytes(b)}, fits with ${data.chosen.fits_with} probability`;
          const words = [["tp", "tp"], ["pp", "pp"], ["dp", "dp"], ["cp", "cp"], ["ep", "ep"], ["vpp", "num_virtual_stages"], ["mbs", "microbatch_size"], ["recompute", "recompute"], ["schedule", "schedule"], ["zero", "zero"], ["context", "context_parallel"]];
          const layout = words.filter(([, name]) => ["tp", "pp", "dp", "recompute", "schedule"].includes(name) || value(name === "context_parallel" ? "cp" : name, mark) !== 1).map(([word, name]) => `${word}=${value(name, mark)}`);
          return `${layout.join(" ")}; ${data.step_time_is_bound[mark] ? "at least " : ""}${seconds(s)}, ${bytes(b)}, ${data.fits[mark] ? `fits with ${value("fits_with", mark)} probability` : "does not fit"}${front.has(mark) ? ", on the Pareto front" : ""}`;
        },
        step(mark, key) {
          const order = [-1, ...shown], at = mark === null ? -1 : order.indexOf(mark);
          return order[clamp(at + (key === "ArrowRight" || key === "ArrowDown" ? 1 : -1), 0, order.length - 1)];
        },
        zoom(x, factor) {
          const at = clamp(x_range[0] + (x - LEFT) / area[0] * (x_range[1] - x_range[0]), ...x_range), length = Math.min((x_range[1] - x_range[0]) / factor, view[1] - view[0]);
          const low = clamp(at - (at - x_range[0]) / factor, view[0], view[1] - length);
          x_range = [low, low + length];
        },
        pan(pixels) {
          const length = x_range[1] - x_range[0], low = clamp(x_range[0] - pixels / area[0] * length, view[0], view[1] - length);
          x_range = [low, low + length];
        },
        all() { x_range = [...view]; },
      };
    };
  }

  const KINDS = { machine, timeline, measured: timeline, candidates };
  function draw(root, data) {
    for (const canvas of root.querySelectorAll("canvas[data-picture]")) {
      const name = canvas.dataset.picture;
      if (data[name]) when_near(canvas, () => picture(canvas, KINDS[name.replace(/_\d$/, "")](data[name])));
    }
    for (const button of root.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", async () => {
        const rows = [...button.parentElement.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t"));
        let done = true;
        try { await navigator.clipboard.writeText(rows.join("\n")); } catch { done = false; }
        if (!done) { getSelection().selectAllChildren(button.parentElement.querySelector("table")); }
        button.textContent = done ? "Copied" : "Selected: copy with Ctrl-C";
        setTimeout(() => { button.textContent = "Copy table"; }, 3000);
      });
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("palette"));
  });
  window.autoshard = { draw, seconds, bytes };
  const data = document.getElementById("data");
  if (data) draw(document, JSON.parse(data.textContent));
})();
