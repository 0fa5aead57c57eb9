/* Lets the menu of a cell copy: its programs, which without this are links, and its code. */

(() => {
  // What is told here is spoken, too.
  const told = document.createElement("div")
  told.className = "proofread-told"
  told.setAttribute("role", "status")
  document.body.append(told)

  // A menu lies in the corner of its code. On Markdown pages it comes after it.
  function setup() {
    for (const menu of document.querySelectorAll(".proofread-copy")) {
      let block = menu.previousElementSibling
      while (block?.matches(".proofread-anchor")) block = block.previousElementSibling
      if (!menu.closest(".jp-Cell") && block?.matches(".highlight")) block.append(menu)
      if (menu.querySelector("button") || !code(menu)) continue
      const button = document.createElement("button")
      button.type = "button"
      button.textContent = "Copy this cell"
      menu.append(button)
    }
  }

  const code = (menu) =>
    [...(menu.closest(".jp-Cell, .highlight")?.querySelectorAll("pre > code") ?? [])]
      .filter((each) => !each.closest("section, .proofread-imports"))
      .map((each) => each.textContent.trimEnd() + "\n")
      .join("")

  async function copy(choice) {
    if (!choice.href) return navigator.clipboard.writeText(code(choice.parentElement))
    const program = fetch(choice.href).then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    program.catch(() => {}) // it is dealt with below
    if (window.ClipboardItem) {
      // Safari copies what a click promises, not what comes later.
      const promised = program.then((text) => new Blob([text], { type: "text/plain" }))
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": promised })])
    } else {
      await navigator.clipboard.writeText(await program)
    }
  }

  const close = (but) =>
    document.querySelectorAll(".proofread-copy[open]").forEach((each) => each === but || (each.open = false))

  // One listener for all cells, also for those of pages that come without a reload.
  document.addEventListener("click", async (event) => {
    const menu = event.target.closest(".proofread-copy")
    const choice = event.target.closest(".proofread-copy :is(a, button)")
    close(menu)
    if (!choice || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    event.preventDefault()
    try {
      await copy(choice)
    } catch {
      if (choice.href) location.assign(choice.href)
      return
    }
    document.querySelectorAll(".proofread-copied").forEach((other) => other.classList.remove("proofread-copied"))
    menu.classList.add("proofread-copied")
    menu.firstElementChild.focus()
    close()
    if (!told.isConnected) document.body.append(told)
    told.textContent = ""
    // Only a change is spoken, so that a second copy has to begin with none.
    requestAnimationFrame(() => (told.textContent = choice.textContent.replace("Copy", "Copied")))
  })
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.(".proofread-copy[open]")
    if (!menu) return
    menu.open = false
    menu.firstElementChild.focus()
  })
  window.document$ ? document$.subscribe(setup) : setup()
})();

/* A figure of the prose tells what gave it: on hover, on focus, at a touch. */
(() => {
  const tip = document.createElement("div")
  tip.id = "proofread-tip"
  tip.className = "proofread-tip"
  tip.setAttribute("role", "tooltip")
  let figures = [], address, given, wanted

  function setup() {
    figures = [...document.querySelectorAll("p-f")]
    address = document.querySelector("[data-figures]")?.dataset.figures
    given = undefined
    if (address) figures.forEach((each) => (each.tabIndex = 0))
  }

  function hide() {
    wanted?.removeAttribute("aria-describedby")
    wanted = undefined
    tip.remove()
  }

  const load = () => (given ??= fetch(address).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer))))

  async function show(figure) {
    if (figure === wanted) return
    hide()
    wanted = figure
    const all = await load().catch(() => (given = undefined))
    if (!all || wanted !== figure) return
    const [expression, value] = all[figures.indexOf(figure)].map((text) => {
      const code = document.createElement("code")
      code.textContent = text
      return code
    })
    tip.replaceChildren(document.createElement("p"))
    tip.firstChild.append(expression, " gives ", value)
    document.body.append(tip)
    // Below its last line, within the window, and touching it, so that the pointer can move onto it.
    const at = [...figure.getClientRects()].pop(), edge = document.documentElement.clientWidth - tip.offsetWidth - 8
    const above = at.bottom + tip.offsetHeight > innerHeight && at.top > tip.offsetHeight
    tip.classList.toggle("proofread-above", above)
    tip.style.left = `${Math.max(8, Math.min(at.left, edge)) + scrollX}px`
    tip.style.top = `${(above ? at.top - tip.offsetHeight : at.bottom) + scrollY}px`
    figure.setAttribute("aria-describedby", tip.id)
  }

  const figure = (event) => address && event.target.closest?.("p-f[tabindex]")
  for (const kind of ["pointerover", "focusin", "click"])
    document.addEventListener(kind, (event) => {
      const over = figure(event)
      if (over) show(over)
      else if (wanted && !tip.contains(event.target) && document.activeElement !== wanted) hide()
      else if (wanted && kind === "click" && !tip.contains(event.target)) hide()
    })
  document.addEventListener("focusout", (event) => event.target === wanted && hide())
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide())
  // What is asked for first is there when it is: nobody asks before the pointer or a key moves.
  for (const kind of ["pointermove", "pointerdown", "keydown"])
    document.addEventListener(kind, () => address && load().catch(() => (given = undefined)), { once: true })
  window.document$ ? document$.subscribe(setup) : setup()
})();

/* What is wider than the page scrolls by itself, and can be reached without a mouse. All is measured before anything is
   changed: else the page would be styled anew for each. */
(() => {
  const sizes = new ResizeObserver((entries) => {
    const wide = entries.map(({ target }) => target.scrollWidth > target.clientWidth)
    entries.forEach(({ target }, place) => {
      if (wide[place]) target.tabIndex = 0
      else target.removeAttribute("tabindex")
    })
  })
  addEventListener("load", () => {
    const boxes = document.querySelectorAll(".jp-OutputArea-output, .jp-RenderedText pre, .math-display")
    boxes.forEach((each) => sizes.observe(each))
  })
})()
