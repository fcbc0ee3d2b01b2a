"""The check of the site and of links."""

import functools
import html
import re
import shutil
from urllib.parse import unquote, urlsplit

import github_markdown
from checks.common import ROOT, fault_of, name_of, one_processor, sources


@one_processor
def docs():
    """Doxygen has no warning and no link is dead; builds the site, build/docs/html/index.html."""
    site = ROOT / "build" / "docs" / "html"
    shutil.rmtree(site.parent, ignore_errors=True)  # removes pages of earlier builds
    site.parent.mkdir(parents=True)
    scripts = ROOT / "scripts"
    for command in ([scripts / "draw-throughput", "--check"], [scripts / "draw-step", "--check"],
                    ["doxygen", "docs/Doxyfile"], [scripts / "docs_site.py"]):
        if fault := fault_of(" ".join(map(str, command)), command):
            return [fault]
    return dead_links_of_sources() + dead_links_of_site(site)


def dead_links_of_sources():
    """Dead links of Markdown files on GitHub."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sources(["docs"], {".md"})]
    return [f"{name_of(page)}:{line}: {fault}" for page in pages if page.is_file()
            for line, link in github_markdown.links(page.read_text())
            if (fault := link_fault(page, link, github_markdown.anchors))]


def dead_links_of_site(site):
    """Dead links of the site's pages and of its lists of the library."""
    faults = []
    for page in sorted(site.glob("room*.html")):
        faults += dead_links_of_page(page)
    for source in sources(["docs"], {".md"}):
        page = site / ("index.html" if source.stem == "mainpage" else f"{source.stem}.html")
        if not page.is_file():
            faults.append(f"{name_of(source)}: there is no {name_of(page)}; begin it with # TITLE")
            continue
        faults += dead_links_of_page(page)
    return faults


def dead_links_of_page(page):
    links = sorted(set(re.findall(r'\b(?:href|src)="([^"]+)"', page.read_text())))
    return [f"{name_of(page)}: {fault}" for link in map(html.unescape, links)
            if (fault := link_fault(page, link, html_anchors))]


def html_anchors(text):
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', text))


@functools.cache
def anchors_in(file, anchors_of):
    return anchors_of(file.read_text())


def link_fault(page, link, anchors_of):
    """Why a link of a page is dead, or None; anchors_of returns the anchors in a file's text."""
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return None
    file = (page.parent / unquote(url.path)).resolve() if url.path else page
    if not file.is_relative_to(ROOT) or not file.exists():
        return f"the link {link} names no file"
    if url.fragment and unquote(url.fragment) not in anchors_in(file, anchors_of):
        return f"the link {link} names nothing in {name_of(file)}"
    return None

