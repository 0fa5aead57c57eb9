/* The worker of the search: it takes out of a query what says nothing, and leaves the rest to the theme's worker, whose
   name stands behind the question mark. Error messages are full of numbers, and of words that every page has. */

const IDLE = new Set(
  ("a an and are as at be but by can could do does for from get has have how i if in into is it its me my of on or " +
    "should so than that the then there this to was what when where which who why will with you your").split(" "))

function telling(query) {
  const words = query.split(/[\s()[\]{}"'`,;:=<>!?]+|\.(?=\s|$)/)
  const kept = words.filter((word) => word && !IDLE.has(word.toLowerCase()) && !/^[\d.x*+-]+$/.test(word))
  return kept.length ? kept.join(" ") : query
}

// The theme's listener comes after this one, and is given the same message.
addEventListener("message", ({ data }) => {
  if (typeof data?.data === "string") data.data = telling(data.data)
})
importScripts(location.search.slice(1))
