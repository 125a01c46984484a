/** The page of an exported model that embeds texts. */

import { startSearch } from "./page.js";

startSearch(new URLSearchParams(location.search));
