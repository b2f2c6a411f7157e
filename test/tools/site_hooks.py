"""What mkdocs changes in the pages of docs/ for the site: links that leave docs/ become the path of the file, and indented blocks with
commands become sessions, whose prompt and output are not copied."""

import re

LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+)([^)\s]+)\)")
BLOCK = re.compile(r"(?:(?<=\n\n)|\A)(?:    .*\n(?:[ \t]*\n(?=    ))*)+")


def outside(folders, climbed):
    """Whether a link of a page that is this many folders below docs/ leaves it."""
    return climbed.count("../") > folders


def session(block):
    """An indented block as a fenced one, if a line of it is a command after a prompt."""
    lines = [line[4:] for line in block.rstrip("\n").split("\n")]
    if not any(line.startswith("$ ") for line in lines):
        return block
    return "```console\n" + "\n".join(lines) + "\n```\n"


def on_page_markdown(markdown, page, **_):
    folders = page.file.src_uri.count("/")

    def shown(link):
        text, climbed, target = link.groups()
        if not outside(folders, climbed):
            return link.group(0)
        path = target.split("#")[0]
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    # A block that is indented as part of a list keeps its form.
    text = BLOCK.sub(lambda block: session(block.group(0)), markdown + "\n")
    return LINK.sub(shown, text)
