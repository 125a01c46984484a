// The page of a folder with two tours: opens the one for this device, in the state that the address names.
const { connection, deviceMemory = 8 } = /** @type {any} */ (navigator);
const narrow = matchMedia("(max-width: 600px)").matches;
const spare = connection?.saveData || ["slow-2g", "2g", "3g"].includes(connection?.effectiveType) || deviceMemory < 4;
location.replace((narrow || spare ? "small.html" : "tour.html") + location.search + location.hash);
