/* The theme makes a landmark of each copy button's place. There are dozens of them on a page, and none leads anywhere.
   And it takes a button's title, which is its only name, away while it shows the title. */

new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const added of addedNodes) {
      if (added.matches?.(".md-code__nav")) {
        added.setAttribute("role", "presentation")
        added.querySelectorAll("[title]").forEach((button) => button.setAttribute("aria-label", button.title))
      }
      if (added.matches?.(".md-typeset__scrollwrap")) sideways.observe(added)
    }
}).observe(document.documentElement, { childList: true, subtree: true })

/* What is wider than its place is scrolled by keys, too: it can be reached as long as it goes on. The theme takes that from
   code on screens that are touched, as soon as the code is seen. */
function reach(target) {
  if (target.scrollWidth <= target.clientWidth) target.removeAttribute("tabindex")
  else if (target.tabIndex !== 0) target.tabIndex = 0
}
const sideways = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)))
addEventListener("load", () => {
  const taken = new MutationObserver((changes) => changes.forEach(({ target }) => reach(target)))
  for (const each of document.querySelectorAll(".md-typeset :is(pre > code, .tensors, details.equation p)")) {
    sideways.observe(each)
    taken.observe(each, { attributeFilter: ["tabindex"] })
  }
})

/* The keys of the theme for the next page and the one before lead where the footer leads: see security.py. */
addEventListener("keydown", (event) => {
  const way = { n: "next", ".": "next", p: "prev", ",": "prev" }[event.key]
  const typing = event.target.closest?.("input, select, textarea, [contenteditable]") || document.getElementById("__search")?.checked
  if (!way || typing || event.metaKey || event.ctrlKey || event.altKey) return
  document.querySelector(`.md-footer__link--${way}`)?.click()
})

/* A picture opens larger, with its caption: at a click on it, or by the button in its corner. */
;(() => {
  const dialog = document.createElement("dialog")
  dialog.className = "enlarged"
  const shut = document.createElement("button")
  Object.assign(shut, { type: "button", textContent: "Close" })
  shut.addEventListener("click", () => dialog.close())
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close())

  function open(button, pictures, caption) {
    const shown = pictures.find((each) => each.checkVisibility()) ?? pictures[0]
    const copy = shown.cloneNode(true)
    const { width, height } = shown.getBoundingClientRect()
    // As large as the window has room for; on a phone larger than that, and it can be moved.
    const large = Math.max(Math.min((innerWidth * 0.92) / width, (innerHeight * 0.8) / height), 1.6)
    copy.style.width = `${Math.round(width * large)}px`
    const place = document.createElement("div")
    place.tabIndex = 0
    place.setAttribute("role", "region")
    place.setAttribute("aria-label", "The picture, larger")
    place.append(copy)
    dialog.replaceChildren(shut, place, ...(caption ? [caption.cloneNode(true)] : []))
    dialog.setAttribute("aria-label", caption?.querySelector("b")?.textContent ?? "Figure")
    if (!dialog.isConnected) document.body.append(dialog)
    dialog.addEventListener("close", () => button.focus({ preventScroll: true }), { once: true })
    dialog.showModal()
  }

  function setup() {
    for (const place of document.querySelectorAll(".jp-OutputArea-output")) {
      const pictures = [...place.querySelectorAll("img.figure")]
      if (!pictures.length || place.querySelector(".enlarge")) continue
      const caption = place.querySelector("figcaption")
      const button = document.createElement("button")
      Object.assign(button, { type: "button", className: "enlarge", title: "Enlarge" })
      button.setAttribute("aria-label", `Enlarge ${caption?.querySelector("b")?.textContent.replace(".", "") ?? "the picture"}`)
      button.addEventListener("click", () => open(button, pictures, caption))
      for (const picture of pictures) picture.addEventListener("click", () => open(button, pictures, caption))
      pictures[0].before(button)
    }
  }
  window.document$ ? document$.subscribe(setup) : document.addEventListener("DOMContentLoaded", setup)
})()

/* In a narrow window the navigation is a drawer. While it is closed nothing in it can be reached, and the button that opens
   it can: for the theme it is a label, which no key reaches. */
;(() => {
  const drawer = document.getElementById("__drawer"), side = document.querySelector(".md-sidebar--primary")
  const narrow = matchMedia("(max-width: 76.234375em)")
  if (!drawer || !side) return

  const names = { __drawer: "Navigation", __search: "Search" }
  const buttons = [...document.querySelectorAll(".md-header label.md-header__button[for]")].flatMap((label) => {
    const toggle = document.getElementById(label.htmlFor)
    if (!(label.htmlFor in names)) return []
    const button = document.createElement("button")
    button.type = "button"
    button.className = label.className
    button.setAttribute("for", label.htmlFor) // the theme's styles look for it
    button.setAttribute("aria-label", names[label.htmlFor])
    button.append(...label.childNodes)
    button.addEventListener("click", (event) => {
      toggle.click()
      if (toggle !== drawer && toggle.checked) document.querySelector(".md-search__input")?.focus()
      // By a key, which goes on where it leads.
      if (!event.detail && toggle === drawer && drawer.checked) side.querySelector("a[href]")?.focus()
    })
    label.replaceWith(button)
    return [[button, toggle]]
  })

  function tell() {
    side.inert = narrow.matches && !drawer.checked
    for (const [button, toggle] of buttons) button.setAttribute("aria-expanded", toggle.checked)
  }

  document.addEventListener("change", tell)
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !drawer.checked) return
    drawer.click()
    buttons.find(([, toggle]) => toggle === drawer)?.[0].focus()
  })
  narrow.addEventListener("change", tell)
  tell()
})()

/* What explains a word goes away by a key. At a touch it comes, and the page stays; a second touch follows the link. */
;(() => {
  let touched, shown
  document.addEventListener("pointerdown", (event) => (touched = event.pointerType === "touch"), true)
  document.addEventListener("click", (event) => {
    const term = event.target.closest?.("a.term")
    if (touched && term && term !== shown) {
      event.preventDefault()
      term.focus()
    }
    shown = term
  }, true)
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return
    for (const each of document.querySelectorAll(".md-tooltip2--active")) each.classList.remove("md-tooltip2--active")
  })
})()

/* The index of the search is on its way before the first letter is typed; the worker of the search asks for it again. Where
   it does not come, as to a page that no server serves, the search says so; there the theme does not even open it. What is
   pasted, said or chosen is asked for as well: the theme listens to keys alone. After Escape the focus is where it was. */
;(() => {
  const search = document.querySelector(".md-search"), toggle = document.getElementById("__search")
  const input = search?.querySelector(".md-search__input"), told = search?.querySelector(".md-search-result__meta")
  if (!input || !toggle) return
  const { base } = JSON.parse(document.getElementById("__config").textContent)
  const missing = location.protocol === "file:"
    ? "The search needs a server: run python -m http.server in the folder of this site."
    : "The index of the search could not be loaded."
  search.hidden = false // the theme hides it where it can start no worker
  if (location.protocol === "file:") told.textContent = missing

  let before, loaded
  async function load() {
    const answer = await (loaded ??= fetch(new URL(`${base}/search/search_index.json`, location)).catch(() => {}))
    if (!answer?.ok) (told.textContent = missing), (loaded = undefined)
  }
  const open = (wanted) => toggle.checked !== wanted && toggle.click()
  input.addEventListener("focus", ({ relatedTarget }) => {
    if (!search.contains(relatedTarget)) before = relatedTarget
    open(true)
    load()
  })
  input.addEventListener("input", () => {
    input.dispatchEvent(new Event("keyup"))
    load()
  })
  document.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape" || !toggle.checked) return
    const places = [before, ...document.querySelectorAll(".md-header [for=__search], .md-header .md-logo")]
    setTimeout(() => {
      open(false)
      places.find((each) => each?.isConnected && each.checkVisibility())?.focus({ preventScroll: true })
    })
  })
})()

/* The page is copied as Markdown, from the file beside it, which is asked for as soon as a pointer or a key is near. Where it
   does not come, as to a page that no server serves, the text is copied as it is read, with all that is folded away. */
;(() => {
  const QUIET = "article :is(.headerlink, .page-contents, .proofread-copy, .proofread-check, svg)"
  const FOLDED = "article details:not([open], .page-contents, .proofread-copy, .proofread-check)"
  function read(links) {
    const all = (what) => [...document.querySelectorAll(what)]
    const folded = all(FOLDED), quiet = all(QUIET)
    const seen = all("article img:not(.only-dark)").map((picture) => {
      const text = document.createElement("p")
      text.textContent = picture.alt
      picture.before(text)
      return text
    })
    folded.forEach((each) => (each.open = true))
    quiet.forEach((each) => (each.style.display = "none"))
    const text = document.querySelector("article").innerText.replace(links.innerText, "")
    quiet.forEach((each) => (each.style.display = ""))
    folded.forEach((each) => (each.open = false))
    seen.forEach((each) => each.remove())
    return text
  }

  const told = document.createElement("span")
  told.className = "copied-page"
  told.setAttribute("role", "status")
  document.querySelector(".as-markdown")?.after(" ", told)

  let known
  const load = (links) => (known ??= fetch(links.querySelector(".as-markdown").href)
    .then((answer) => (answer.ok ? answer.text() : Promise.reject(answer.status)))
    .catch(() => (known = undefined)))
  const near = ({ target }) => target.closest?.(".copy-page")?.parentElement
  for (const kind of ["pointerover", "focusin"])
    document.addEventListener(kind, (event) => near(event) && load(near(event)))

  document.addEventListener("click", async (event) => {
    const links = near(event)
    if (!links) return
    let said = "Copied as Markdown"
    const text = load(links).then((given) => given ?? ((said = "Copied as plain text: the Markdown did not come"), read(links)))
    try {
      // Safari copies what a click promises, not what comes later.
      const promised = text.then((copied) => new Blob([copied], { type: "text/plain" }))
      if (window.ClipboardItem) await navigator.clipboard.write([new ClipboardItem({ "text/plain": promised })])
      else await navigator.clipboard.writeText(await text)
    } catch {
      said = "The browser does not let this page copy: open the Markdown, and copy it there"
    }
    told.textContent = ""
    // Only a change is spoken, so that a second copy has to begin with none.
    requestAnimationFrame(() => (told.textContent = said))
  })
})()

/* The keys of the theme are told to who has keys. */
;(() => {
  const place = document.querySelector(".md-copyright"), line = document.createElement("p")
  if (!place || !matchMedia("(hover: hover) and (pointer: fine)").matches) return
  line.className = "keys"
  const keys = { "/": "or", s: "opens the search,", n: "the next page,", p: "the page before." }
  line.append("Keys: ", ...Object.entries(keys).flatMap(([key, does]) => {
    const name = document.createElement("kbd")
    name.textContent = key
    return [name, ` ${does} `]
  }))
  place.prepend(line)
})()

/* Which pages of learn have been opened is kept in this browser, and told to nobody. */
;(() => {
  const config = document.getElementById("__config")
  if (!config) return
  const { base } = JSON.parse(config.textContent)
  const track = new URL(`${base}/learn/`, location).pathname
  const path = (url) => new URL(url, location).pathname.replace(/index\.html$/, "")
  if (!path(location).startsWith(track)) return
  const links = [...document.querySelectorAll(".md-nav--primary a.md-nav__link:not([href*='#'])")].filter(
    ({ href }) => path(href).startsWith(track))
  const opened = new Set(__md_get("learn") ?? []).add(path(location))
  __md_set("learn", [...opened])
  const done = links.filter(({ href }) => opened.has(path(href)))
  for (const link of done) {
    const mark = document.createElement("span")
    Object.assign(mark, { className: "opened", textContent: "✓" })
    mark.setAttribute("role", "img")
    mark.setAttribute("aria-label", "opened")
    link.append(mark)
  }
  const section = links[0]?.closest(".md-nav__item--section")
  for (const title of section?.querySelectorAll(":scope > .md-nav__link .md-ellipsis, :scope > nav > .md-nav__title") ?? []) {
    const count = document.createElement("span")
    Object.assign(count, { className: "progress", textContent: ` ${done.length} of ${links.length} opened` })
    title.append(count)
  }
})()

/* What was searched for is marked on the page that a result leads to, in all its forms: masks and masking where masks was
   typed. The text stays as it is; what figures write that live is left out. It waits for the theme, which moves tables. */
addEventListener("load", () => {
  const words = new URLSearchParams(location.search).get("h")?.match(/[\p{L}\p{N}_]+/gu)
  if (!words || !window.Highlight) return
  const stems = words.map((word) => word.replace(/(?<=.{4})(ing|ed|ies)$|(?<=..[^su])s$/, ""))
  const forms = new RegExp(`(?<![\\p{L}\\p{N}_])(${stems.join("|")})[\\p{L}\\p{N}_]*`, "giu")
  const found = new Highlight()
  const texts = document.createTreeWalker(document.querySelector("article") ?? document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const text = texts.currentNode
    if (text.parentElement.closest("script, style, math, [data-live]")) continue
    for (const { 0: form, index } of text.data.matchAll(forms)) {
      const range = new Range()
      range.setStart(text, index)
      range.setEnd(text, index + form.length)
      found.add(range)
    }
  }
  CSS.highlights.set("found", found)
})
