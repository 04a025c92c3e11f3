"""PCI configuration spaces: built capability by capability, with the offsets of the PCI Express Base Specification."""

DEAD = b"\xff" * 64


def config_space(
    *,
    acs: int | None = None,
    max_read_request: int | None = None,
    express: bool = True,
    size: int = 4096,
) -> bytes:
    """A device with a power management capability at 0x40 and, if `express`, the PCI Express one at 0x60; an error reporting one at 0x100 and, if given, an ACS
    one at 0x148. `size`: what this reader is given of it.
    """
    space = bytearray(4096)
    space[0:4] = (0x2F, 0x97, 0xB5, 0x10)
    space[0x06] = 0x10
    space[0x34] = 0x40
    space[0x40:0x42] = (0x01, 0x60 if express else 0x00)
    if express:
        space[0x60:0x62] = (0x10, 0x00)
        code = {None: 2, 128: 0, 256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[max_read_request]
        space[0x68:0x6A] = (code << 12 | 0x0930 & 0x0FFF).to_bytes(2, "little")
        space[0x100:0x104] = (0x0001 | 1 << 16 | (0x148 if acs is not None else 0) << 20).to_bytes(4, "little")
    if acs is not None:
        space[0x148:0x14C] = (0x000D | 1 << 16).to_bytes(4, "little")
        space[0x14C:0x14E] = (0x005F).to_bytes(2, "little")
        space[0x14E:0x150] = acs.to_bytes(2, "little")
    return bytes(space[:size])
