#!/usr/bin/env python3
"""Draws docs/dist_autograd.svg: one forward and one backward over three workers.

Usage: tools/draw_pass.py > docs/dist_autograd.svg
tests/features/run.sh checks that the drawing in docs/ is what this prints.
"""

import html

LANES = [('w0', 'root: loss = f(y)', 140), ('w1', 'y = Scale(w2(x))', 440), ('w2', 'h = Add(x, b)', 740)]
TOP, STEP, WIDTH = 96, 34, 880

# (section) or (from lane, to lane, text, kind); one row each.
ROWS = [
    ('Forward: recorded calls',),
    (0, 1, '1  Call(Scale, x): message 1 of w0', 'forward'),
    (1, 2, '2  nested Call(Add, x): message 1 of w1', 'forward'),
    (2, 1, '3  h: message 1 of w2, lineage {w0:1, w1:1}', 'forward'),
    (1, 0, '4  y: message 2 of w1, lineage {w0:1, w1:1, w2:1}', 'forward'),
    ('PREPARE: the live messages, from the lineage of the loss',),
    (0, 1, '5  TakePart: messages 1 and 2 of w1 are live', 'control'),
    (0, 2, '5  TakePart: message 1 of w2 is live', 'control'),
    ('Backward: one message for each live message of the forward',),
    (0, 1, '6  TakeGradients: of y (4)', 'backward'),
    (1, 2, '7  TakeGradients: of h (3)', 'backward'),
    (2, 1, '8  TakeGradients: of x (2); that of b stays at w2', 'backward'),
    (1, 0, '9  TakeGradients: of x (1)', 'backward'),
    ('COMMIT: staged gradients become visible on all workers, or on none',),
    (2, 0, '10  reply to TakePart: done', 'control'),
    (1, 0, '10  reply to TakePart: done', 'control'),
    (0, 1, '11  TakeOutcome: COMMIT', 'control'),
    (0, 2, '11  TakeOutcome: COMMIT', 'control'),
]
COLORS = {'forward': '#1a5fb4', 'backward': '#a51d2d', 'control': '#555555'}


def text(x, y, words, size=13, anchor='middle', color='#222222', weight='normal'):
    return (f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{color}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def arrow(x1, x2, y, kind):
    dash = ' stroke-dasharray="6 4"' if kind == 'control' else ''
    return (f'<line x1="{x1}" y1="{y}" x2="{x2}" y2="{y}" stroke="{COLORS[kind]}" stroke-width="1.6"{dash} '
            f'marker-end="url(#{kind})"/>')


def main():
    height = TOP + STEP * (len(ROWS) + 1)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif">',
        '<title>One forward and one backward over three workers</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<defs>',
    ]
    for kind, color in COLORS.items():
        out.append(f'<marker id="{kind}" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
                   f'<path d="M0,0 L9,4 L0,8 z" fill="{color}"/></marker>')
    out.append('</defs>')
    for name, role, x in LANES:
        out.append(f'<rect x="{x - 90}" y="16" width="180" height="44" rx="6" fill="#f0f0f0" stroke="#888888"/>')
        out.append(text(x, 34, name, 14, weight='bold'))
        out.append(text(x, 52, role, 12, color='#555555'))
        out.append(f'<line x1="{x}" y1="60" x2="{x}" y2="{height - 16}" stroke="#bbbbbb"/>')
    for i, row in enumerate(ROWS):
        y = TOP + STEP * i
        if len(row) == 1:
            out.append(f'<rect x="24" y="{y - 15}" width="{WIDTH - 48}" height="22" fill="#faf3dd"/>')
            out.append(text(36, y, row[0], 13, anchor='start', weight='bold'))
            continue
        source, target, words, kind = row
        x1, x2 = LANES[source][2], LANES[target][2]
        inset = 4 if x2 > x1 else -4
        out.append(arrow(x1 + inset, x2 - inset, y + 5, kind))
        middle = (x1 + x2) / 2
        width = 6.4 * len(words)
        out.append(f'<rect x="{middle - width / 2:.0f}" y="{y - 15}" width="{width:.0f}" height="14" fill="white" '
                   'fill-opacity="0.85"/>')
        out.append(text(f'{middle:.0f}', y - 4, words, 12, color=COLORS[kind]))
    out.append('</svg>')
    print('\n'.join(out))


main()
