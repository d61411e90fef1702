from diffclip.report.svg import shortened

DRAWN = """<?xml version="1.0"?>
<!DOCTYPE svg>
<svg width="10.125pt">
 <metadata>
  <creator/>
 </metadata>
  <!-- loss -->
 <path d="M 1.23456 2
L 1024.5049 -0.001
z
" style="stroke: #24292f"/>
 <use x="3.14159" y="20" transform="scale(0.015625)"/>
</svg>
"""


def test_coordinates_keep_a_tenth_and_all_else_stays() -> None:
    assert (
        shortened(DRAWN).replace("\n", "")
        == '<svg width="10.125pt"><!-- loss --><path d="M 1.2 2 L 1024.5 -0 z" style="stroke: #24292f"/>'
        '<use x="3.1" y="20" transform="scale(0.015625)"/></svg>'
    )


def test_what_is_short_stays_as_it_is() -> None:
    once = shortened(DRAWN)
    assert shortened(once) == once
