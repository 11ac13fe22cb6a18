// One head as two columns of tokens, with lines from queries to keys.

const MOST_LINES = 1500; // the strongest

function makeLines(data, state, focus, pin) {
  const canvas = document.querySelector("#lines canvas"), scroller = $("scroller");
  const lists = { row: $("rows"), key: $("keys") };
  const listed = { row: null, key: null };
  const TOP = 6;
  let HEIGHT = 0; // of a token

  function fill(side, tokens) {
    if (listed[side] === tokens) return;
    listed[side] = tokens;
    const items = tokens.map((token, i) => element("li", {
      textContent: formatToken(token), title: token, dir: "auto", tabIndex: i === 0 ? 0 : -1,
      role: "option", "aria-selected": "false", "data-side": side, "data-i": i,
    }));
    lists[side].replaceChildren(...items);
  }

  function show() {
    HEIGHT = parseFloat(css("--line"));
    fill("row", state.head.layer.rowTokens);
    fill("key", state.head.layer.keyTokens);
    const { T, S } = state.head.whole;
    scroller.parentElement.style.maxHeight = `${2 * TOP + 2 + HEIGHT * Math.max(T, S)}px`;
  }

  let marked = [];
  function mark(active) {
    const set = (item, on) => {
      item.classList.toggle("on", on);
      item.setAttribute("aria-selected", on);
    };
    for (const item of marked) set(item, false);
    marked = active ? [lists.row.children[active.row], lists.key.children[active.key]].filter(Boolean) : [];
    for (const item of marked) set(item, true);
  }

  function draw(active) {
    const context = clearCanvas(canvas), width = canvas.clientWidth, height = canvas.clientHeight;
    const side = active && active.row === undefined ? "key" : "row", tint = css(`--${side}-tint`);
    mark(active);
    const column = lists.row.getBoundingClientRect().width, right = scroller.clientWidth - column, top = scroller.scrollTop;
    const middle = (i) => TOP + (i + 0.5) * HEIGHT - top;
    const seen = (i) => middle(i) > -HEIGHT && middle(i) < height + HEIGHT;
    const { T, S } = state.head.whole, least = Math.max(1, state.threshold);
    const each = (use) => {
      if (active && active.row !== undefined) for (let j = 0; j < S; j++) use(active.row, j, codeAt(state.head, active.row, j));
      else if (active) for (let i = 0; i < T; i++) use(i, active.key, codeAt(state.head, i, active.key));
      else for (let i = 0; i < T; i++) if (seen(i)) for (let j = 0; j < S; j++) use(i, j, codeAt(state.head, i, j));
    };
    const counts = new Uint32Array(256), found = [];
    each((i, j, code) => counts[code]++);
    let cut = 255;
    for (let sum = counts[cut]; cut > least && (sum += counts[cut - 1]) <= MOST_LINES;) cut--;
    each((i, j, code) => { if (code >= cut && code >= least && found.length < 2 * MOST_LINES) found.push([code, i, j]); });
    found.sort((a, b) => a[0] - b[0]); // the strongest on top
    const most = found.length ? found[found.length - 1][0] : 1;
    if (active) {
      context.fillStyle = `rgba(${tint}, 0.14)`;
      box(side === "row" ? 0 : right, middle(active[side]), column);
    }
    for (const [code, i, j] of found) {
      const share = code / most, here = active && active.row !== undefined && active.key === j;
      const y = middle(i), z = middle(j), bend = (right - column) / 2;
      context.strokeStyle = `rgba(${tint}, ${(active ? 0.15 : 0.04) + (active ? 0.8 : 0.6) * share ** 2})`;
      context.lineWidth = (here ? 1.2 : 0.6) + 2 * share * share;
      context.beginPath();
      context.moveTo(column, y);
      context.bezierCurveTo(column + bend, y, right - bend, z, right, z);
      context.stroke();
      if (!active) continue;
      // A bar behind the other token, as long as the weight.
      const other = side === "key" ? y : z, weight = (code / data.levels) ** 2, length = Math.max(2, column * weight);
      context.fillStyle = `rgba(${tint}, ${0.12 + 0.22 * share})`;
      box(side === "key" ? column - length : right, other, length);
    }
  }

  function box(x, y, width) {
    const context = canvas.getContext("2d");
    context.beginPath();
    context.roundRect(x, y - HEIGHT / 2 + 1, width, HEIGHT - 2, 3);
    context.fill();
  }

  const place = (event) => {
    const item = event.target.closest && event.target.closest("li");
    return item ? { [item.dataset.side]: +item.dataset.i } : null;
  };
  scroller.addEventListener("pointerover", (event) => focus(place(event)));
  scroller.addEventListener("pointerleave", () => focus(null));
  scroller.addEventListener("scroll", () => state.redraw());
  scroller.addEventListener("click", (event) => pin(place(event)));
  scroller.addEventListener("focusin", (event) => {
    const at = place(event);
    if (!at) return;
    for (const other of event.target.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
    if (event.target.matches(":focus-visible")) pin(at);
  });
  scroller.addEventListener("keydown", (event) => {
    const at = place(event);
    if (!at) return;
    const side = at.row === undefined ? "key" : "row", i = at[side], count = lists[side].children.length;
    const page = Math.max(1, Math.floor(scroller.clientHeight / HEIGHT) - 1);
    const moves = { ArrowUp: i - 1, ArrowDown: i + 1, PageUp: Math.max(0, i - page), PageDown: Math.min(count - 1, i + page), Home: 0, End: count - 1 };
    if (event.key in moves) go(side, moves[event.key]);
    else if (event.key === "ArrowRight" && side === "row") go("key", Math.min(i, lists.key.children.length - 1));
    else if (event.key === "ArrowLeft" && side === "key") go("row", Math.min(i, lists.row.children.length - 1));
    else return;
    event.preventDefault();
  });

  function go(side, i) {
    if (lists[side].children[i]) lists[side].children[i].focus();
  }

  new ResizeObserver(() => state.redraw()).observe(canvas);
  // Scrolls a token into view.
  function reveal({ row, key }) {
    const i = row === undefined ? key : row, y = TOP + i * HEIGHT - scroller.scrollTop;
    if (y < 0 || y + HEIGHT > scroller.clientHeight) scroller.scrollTop += y - scroller.clientHeight / 2;
  }
  return { show, draw, reveal };
}
