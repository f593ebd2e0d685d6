"""Checks the built site without the network: `python docs/check_links.py docs/_build/html`.

- Links to pages, anchors and files of the site lead somewhere.
- Links to files of the repository on its host do as well.
- Other links are well-formed, and use https.
- Pages load their scripts, styles, fonts and images from the site alone.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/headrace/headrace"
IN_REPOSITORY = re.compile(re.escape(REPOSITORY) + r"/(?:blob|tree)/main/([^#?]*)")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "audio": "src", "video": "src"}
LOADED_LINKS = {"stylesheet", "preload", "icon", "shortcut icon", "modulepreload", "preconnect", "dns-prefetch"}
HTTP_HOSTS = {"127.0.0.1", "localhost"}


class Page(HTMLParser):
    """The anchors of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel", "") in LOADED_LINKS:
            self.loads.append(given.get("href", ""))
        elif tag in LOADS and LOADS[tag] in given:
            self.loads.append(given[LOADS[tag]])


def problems_of(site: Path) -> list[str]:
    """All that is wrong with a site, one line each."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    if not pages:
        return [f"there is no page in {site}"]
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: {why}" for link in page.links if (why := problem_of_link(link, path, pages, site))]
        found += [f"{name}: {why}" for load in page.loads if (why := problem_of_load(load, path, site))]
    for path in sorted(site.rglob("*.css")):
        urls = re.findall(r"""(?:@import\s+|url\()\s*["']?(https?:)?//([^"')]+)""", path.read_text())
        found += [f"{path.relative_to(site)}: loads //{rest}" for _, rest in urls]
    return sorted(set(found))


def problem_of_link(link: str, path: Path, pages: dict[Path, Page], site: Path) -> str | None:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return problem_of_address(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site):
        return f"{link} leads out of the site"
    if not target.exists():
        return f"{link} leads nowhere"
    if parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
        return f"{link} has no such anchor"
    return None


def problem_of_address(link: str) -> str | None:
    """What is wrong with a link to elsewhere, as far as one can tell from here."""
    parts = urlsplit(link)
    if parts.scheme == "mailto":
        return None if "@" in parts.path else f"{link} is no address"
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in HTTP_HOSTS):
        return f"{link} is not https"
    if not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.hostname or "") or re.search(r"\s", link):
        return f"{link} is malformed"
    if (named := IN_REPOSITORY.match(link)) and not (ROOT / unquote(named[1])).exists():
        return f"{link} names a file that the repository does not have"
    return None


def problem_of_load(load: str, path: Path, site: Path) -> str | None:
    parts = urlsplit(load)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return f"loads {load} from elsewhere"
    if not (path.parent / unquote(parts.path)).resolve().is_relative_to(site):
        return f"loads {load} from outside of the site"
    return None if (path.parent / unquote(parts.path)).exists() else f"loads {load}, which is not there"


if __name__ == "__main__":
    problems = problems_of(Path(sys.argv[1]).resolve())
    print("\n".join(problems) or "All links lead somewhere.")
    sys.exit(bool(problems))
