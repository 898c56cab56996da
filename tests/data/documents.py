"""Real files of documents, PDF included, written byte by byte."""

from pathlib import Path


def pdf(*pages: str, title: str = "", encrypted: bool = False) -> bytes:
    """A PDF of pages with lines of text; a page without text has a drawn line, as a scan has a picture."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for page in pages:
        lines = page.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").splitlines()
        text_operators = "BT /F1 11 Tf 50 750 Td 14 TL " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        content = text_operators if page else "50 50 m 300 300 l S"
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
        resources = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {len(objects)} 0 R "
            f"/Resources {resources} >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    objects.append(f"<< /Title ({title}) >>")
    trailer = f"/Root 1 0 R /Info {len(objects)} 0 R"
    if encrypted:  # RC4 of 40 bits whose owner and user keys fit no password that anybody knows
        key = "00" * 32
        objects.append(f"<< /Filter /Standard /V 1 /R 2 /O <{key}> /U <{key}> /P -4 >>")
        trailer += f" /Encrypt {len(objects)} 0 R /ID [<{'00' * 16}> <{'00' * 16}>]"
    data, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"trailer\n<< /Size {size} {trailer} >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {size}\n0000000000 65535 f \n{table}{end}".encode("latin-1")


LEAVE = """---
title: "Leave"
---
Ask two weeks ahead.

# Holidays
Everybody has [thirty days](https://example.org/leave).

## Sick leave
Call the office before nine.

```sh
# not a heading
```

Underlined
----------
Bring a note on the third day.
"""

PAGE = """<html><head><title>Travel costs</title></head><body><nav><a href="/">Home</a></nav><article>
<h1>Travel costs</h1>
<p>Tickets are refunded within a month if the receipts are handed in before the journey is booked by somebody else.</p>
<h2>By car</h2><p>A kilometre by car is refunded with thirty cents, and parking is refunded in full with a receipt.</p>
</article><footer>Imprint</footer></body></html>"""


def save_documents(folder: Path) -> Path:
    """A folder with a file of every format, and files that cannot be read."""
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / "leave.md").write_text(LEAVE, encoding="utf-8")
    (folder / "rules" / "travel costs.html").write_text(PAGE, encoding="utf-8")
    (folder / "parking_rules.txt").write_text("Park behind the house.\n\nNever park before the gate.", encoding="utf-8")
    (folder / "safety.pdf").write_bytes(
        pdf("Wear a hel-\nmet in the hall.", "Fire: leave by the stairs.", title="Safety")
    )
    lines = ['{"id": 7, "title": "Keys", "text": "Keys are kept at the desk."}', '{"text": "Doors close at ten."}']
    (folder / "notes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "scan.pdf").write_bytes(pdf("", ""))
    (folder / "secret.pdf").write_bytes(pdf("hidden", encrypted=True))
    (folder / "torn.pdf").write_bytes(pdf("torn")[:200])
    (folder / "empty.md").write_text("\n\n")
    (folder / "latin.txt").write_bytes("Müdigkeit".encode("latin-1"))
    (folder / "broken.jsonl").write_text('{"text": "half')
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / ".hidden.md").write_text("hidden")
    return folder
