/** The page of an exported site: the model runs in the page itself. */

import { LocalEngine } from "./page/local.js";
import { startPage } from "./page/page.js";

startPage(new LocalEngine(new URLSearchParams(location.search)));
