"""A page as its tags, texts and tables."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Tags, texts in all and by tag, rows of tables in all and by heading, and an outline."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.texts, self.rows, self.begun = [], [], {}, [], False
        self.outline, self.text, self.under = "", "", {}
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "bdi":  # part of the text that it is in
            return
        self.begun = True
        if tag in {"meta", "img"}:
            self.outline += f"{tag} "
        else:
            self.open.append(tag)
            self.outline += f"{tag}("
        if tag == "tr":
            self.rows.append([])
            heading = self.texts.get("h2", [""])[-1].strip()
            self.under.setdefault(heading, []).append(self.rows[-1])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag != "bdi":
            assert self.open.pop() == tag
            self.outline += ")"

    def handle_data(self, data):
        self.text += data
        if self.open:
            texts = self.texts.setdefault(self.open[-1], [])
            if self.begun or not texts:
                texts.append(data)
                self.begun = False
            else:  # after a part that is isolated
                texts[-1] += data
            if self.open[-1] in {"td", "th"}:
                self.rows[-1][-1] += data

    def named(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]
