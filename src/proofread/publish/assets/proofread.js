/* Makes copy buttons of the links to the programs of cells. Without it, or where it may not copy, they open them. */

(() => {
  // What is told here is spoken, too.
  const told = document.createElement("div")
  told.className = "proofread-told"
  told.setAttribute("role", "status")
  document.body.append(told)

  async function copy(address) {
    const program = fetch(address).then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    program.catch(() => {}) // it is dealt with below
    if (window.ClipboardItem) {
      // Safari copies what a click promises, not what comes later.
      const promised = program.then((text) => new Blob([text], { type: "text/plain" }))
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": promised })])
    } else {
      await navigator.clipboard.writeText(await program)
    }
  }

  // One listener for all links, also for those of pages that come without a reload.
  document.addEventListener("click", async (event) => {
    const link = event.target.closest(".proofread-programs a")
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
    event.preventDefault()
    try {
      await copy(link.href)
      document.querySelectorAll(".proofread-copied").forEach((other) => other.classList.remove("proofread-copied"))
      link.classList.add("proofread-copied")
      if (!told.isConnected) document.body.append(told)
      told.textContent = ""
      // Only a change is spoken, so that a second copy has to begin with none.
      requestAnimationFrame(() => (told.textContent = `Copied ${link.pathname.split("/").pop()}`))
    } catch {
      location.assign(link.href)
    }
  })
})();

/* What is wider than the page scrolls by itself, and can be reached without a mouse. */
(() => {
  const reach = () =>
    document.querySelectorAll(".jp-OutputArea-output, .jp-RenderedText pre, .math-display").forEach((each) => {
      if (each.scrollWidth > each.clientWidth) each.tabIndex = 0
      else each.removeAttribute("tabindex")
    })
  addEventListener("load", reach)
  addEventListener("resize", reach)
  addEventListener("toggle", reach, true)
})()
