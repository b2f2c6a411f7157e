#!/usr/bin/env python3
"""Tests site_hooks.py without mkdocs."""

import types
import unittest

import site_hooks


def changed(markdown, path="a.md"):
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri=path))
    return site_hooks.on_page_markdown(markdown, page)


class SiteHooks(unittest.TestCase):
    def test_links_out_of_docs_become_paths(self):
        self.assertIn("see the grammar (`grammar/Recipe.g4`)", changed("see [the grammar](../grammar/Recipe.g4)"))
        self.assertIn("see `test/a.py`", changed("see [`a.py`](../test/a.py)"))
        self.assertIn("[fsdp](../fsdp.md)", changed("[fsdp](../fsdp.md)", "adr/1.md"))
        self.assertIn("`dev`", changed("[dev](../../dev)", "adr/1.md"))

    def test_commands_become_sessions(self):
        page = "Text:\n\n    $ shardc check a.recipe\n    a.recipe: error\n\n    $ shardc fmt\n\nMore.\n"
        expected = "Text:\n\n```console\n$ shardc check a.recipe\na.recipe: error\n\n$ shardc fmt\n```\n\nMore.\n"
        self.assertIn(expected, changed(page))

    def test_other_blocks_stay(self):
        for page in ("Text:\n\n    recipe a { }\n\nMore.\n", "1. **One.**\n\n       $ shardc check\n\n2. Two\n"):
            self.assertIn(page, changed(page))


if __name__ == "__main__":
    unittest.main()
