"""A hook of MkDocs: links of a page to files outside docs/ become the name of the file, since the site has no such page.

In the repository these links work; tests/lint/test_text.py checks that."""
import re


def on_page_markdown(markdown, **_):
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)#\s]+)[^)]*\)", lambda link: f"{link[1]} (`{link[2]}`)", markdown)
