"""A plan as one HTML page that needs no network: `page.py` makes it, `sections.py` has its parts in the order in which
people ask.

Why no chart library draws it. Three of the pictures are not charts: devices in nodes with their groups, some ten
thousand actions of a pipeline on a clock, memory in stacks with an interval and a limit. A library would draw the
scatter alone. The only bundle of plotly on the Python package index (7.1) has 4.8 MB, more than twice what a report may
have in all; bokeh's (3.9) has 1.3 MB and brings tornado and pillow; altair draws through a library of 33 MB. None of
them puts a mark under the keyboard or tells it to a screen reader, which would have to be written beside any of them.
So numbers are HTML tables, which can be read aloud and copied, with bars in their cells; `pictures.js` draws the rest
on three canvases, with one small piece for hover, keys and zoom.
"""
