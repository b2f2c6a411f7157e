"""Keeps paths with blanks in one piece in the RUN lines of lit tests, so that tests can write `%t/a` and not
`"%t/a"`."""

BLANK = "\x1f"  # stands for a blank of a path until it is known whether it is quoted


def quoted(line):
    """The line with its paths' blanks: unchanged inside of quotes, with a backslash outside."""
    out, quote, escaped = [], None, False
    for char in line:
        if char == BLANK:
            out.append(" " if quote else "\\ ")
            continue
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote is None and char in "'\"":
            quote = char
        elif char == quote:
            quote = None
        out.append(char)
    return "".join(out)


def keep_paths_whole(apply):
    """Wraps lit's function that substitutes %s, %t and so on. Every value with a slash is treated as one path."""

    def apply_quoted(script, substitutions, **options):
        hidden = [(name, str(value).replace(" ", BLANK) if "/" in str(value) else value) for name, value in substitutions]
        return [quoted(line) for line in apply(script, hidden, **options)]

    return apply_quoted
