"""PTX text -> Module / Function / Instr objects, and functions -> segments.

Nothing here knows about threads: parsing is done once per PTX text and cached
by the caller.  A *segment* is a straight run of instructions that is entered
only at its top; control flow, block barriers and warp-synchronous
instructions are only found at segment edges.
"""

import bisect
import re
import struct
from dataclasses import dataclass, field

from .errors import PtxSyntaxError

TYPE_BYTES = {
    "pred": 1,
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "tf32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "b128": 16,
}
SPACES = ("param", "global", "shared", "local", "const")


# ---------------------------------------------------------------- operands
@dataclass(eq=False)
class Reg:
    name: str
    type: str


@dataclass(frozen=True)
class Imm:
    value: object  # int or float
    bits: int = None  # set for 0f.. and 0d.. literals
    nbytes: int = None  # 4 or 8, likewise


@dataclass(frozen=True)
class Special:
    name: str  # "%tid.x"


@dataclass(frozen=True)
class Sym:
    name: str
    offset: int = 0


@dataclass(frozen=True)
class Mem:
    base: object  # Reg, Sym or None
    offset: int


@dataclass(frozen=True)
class Vec:
    items: tuple


@dataclass(frozen=True)
class Pair:
    first: object
    second: object


@dataclass(frozen=True)
class Not:
    arg: object


class Sink:
    """The operand `_`."""


SINK = Sink()


@dataclass(eq=False)
class Var:
    """A variable in .global/.const/.shared/.local/.param space."""

    space: str
    name: str
    type: str
    align: int
    nbytes: int  # 0 for an unsized extern array
    extern: bool = False
    init: object = None


@dataclass(eq=False)
class Instr:
    op: str
    parts: list
    operands: list
    guard: object  # None, Reg or Not(Reg)
    line: int
    text: str
    scope: object = None
    labels: list = None  # branch targets

    def __str__(self):
        return f"line {self.line}: {self.text}"


@dataclass(eq=False)
class Label:
    name: str
    line: int


@dataclass(eq=False)
class Call:
    """Operands of a call: parameter variables of the caller and the callee's name."""

    results: list
    target: str
    args: list


@dataclass(eq=False)
class Function:
    name: str
    is_entry: bool
    params: list  # [Var]
    results: list = field(default_factory=list)
    items: list = field(default_factory=list)
    variables: dict = field(default_factory=dict)  # function-level .shared/.local/.param by unique name
    directives: dict = field(default_factory=dict)
    segments: list = None
    defined: bool = True


@dataclass(eq=False)
class Module:
    version: str
    target: str
    variables: dict
    functions: dict

    def entry(self, name=None):
        entries = {n: f for n, f in self.functions.items() if f.is_entry}
        if name is None:
            if len(entries) != 1:
                raise PtxSyntaxError(f"name one entry of {sorted(entries)}")
            return next(iter(entries.values()))
        if name not in entries:
            raise PtxSyntaxError(f"no entry {name!r} in {sorted(entries)}")
        return entries[name]


@dataclass(eq=False)
class Segment:
    index: int
    function: Function
    instrs: list = field(default_factory=list)
    sync: Instr = None  # warp-synchronous instruction at the top, run after gathering its lanes
    term: Instr = None  # bra / ret / call / bar ..., or None to fall through
    targets: list = None  # branch target segments
    line: int = 0


# ---------------------------------------------------------------- scanning
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_INSTR = re.compile(r"(?:@\s*(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
_DEBUG = re.compile(r"\.(loc|file)\s")
_INT = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.\d+([eE][-+]?\d+)?)$")


def _int(s):
    s = s.strip().rstrip("U")
    sign = -1 if s.startswith("-") else 1
    s = s.lstrip("+-")
    if len(s) > 1 and s[0] == "0" and s.isdigit():
        return sign * int(s, 8)
    return sign * int(s, 0)


def _split(s, sep=","):
    """Split at sep outside any bracket."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(s):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == sep and depth == 0:
            out.append(s[start:i])
            start = i + 1
    tail = s[start:]
    if tail.strip() or out:
        out.append(tail)
    return [x.strip() for x in out]


class _Scope:
    def __init__(self, parent=None):
        self.parent = parent
        self.regs, self.banks, self.params, self.labels = {}, {}, {}, {}

    def chain(self):
        s = self
        while s is not None:
            yield s
            s = s.parent

    def reg(self, name):
        for s in self.chain():
            if name in s.regs:
                return s.regs[name]
            m = re.match(r"(.*?)(\d+)$", name)
            # every split of trailing digits may name a bank, e.g. "%rd12" or "%f1_12"
            while m:
                prefix, num = m.group(1), m.group(2)
                if prefix in s.banks and int(num) < s.banks[prefix][1] and str(int(num)) == num:
                    s.regs[name] = Reg(name, s.banks[prefix][0])
                    return s.regs[name]
                m = re.match(r"(" + re.escape(prefix + num[0]) + r")(\d+)$", name) if len(num) > 1 else None
        return None

    def find(self, table, name):
        for s in self.chain():
            hit = getattr(s, table).get(name)
            if hit is not None:
                return hit
        return None


class Parser:
    def __init__(self, text):
        blank = lambda m: re.sub(r"[^\n]", " ", m.group())
        self.text = _COMMENT.sub(blank, text)
        self._starts = [0] + [m.end() for m in re.finditer("\n", self.text)]

    def line(self, pos):
        return bisect.bisect_right(self._starts, pos)

    def fail(self, pos, why):
        raise PtxSyntaxError(f"line {self.line(pos)}: {why}: {self.text[pos : pos + 80].splitlines()[0]!r}")

    def matching(self, pos, open_, close):
        depth = 0
        for i in range(pos, len(self.text)):
            c = self.text[i]
            if c == open_:
                depth += 1
            elif c == close:
                depth -= 1
                if depth == 0:
                    return i
        self.fail(pos, f"no matching {close}")

    # ------------------------------------------------------------ module level
    def module(self):
        t, pos = self.text, 0
        mod = Module("", "", {}, {})
        word = re.compile(r"\s*([.\w$%]+)")
        while True:
            m = word.match(t, pos)
            if not m:
                if t[pos:].strip(" \n\t\r\0;}"):
                    self.fail(pos, "unexpected text")
                return mod
            w, at = m.group(1), m.start(1)
            if w in (".version", ".target", ".address_size", ".file", ".loc"):
                end = t.find("\n", at)
                end = len(t) if end < 0 else end
                value = t[at + len(w) : end].strip()
                if w == ".version":
                    mod.version = value
                elif w == ".target":
                    mod.target = value.split(",")[0].strip()
                pos = end
            elif w == ".section":
                pos = self.matching(t.index("{", at), "{", "}") + 1
            elif w.startswith("."):
                head = re.compile(r"[^;{(=]*").match(t, at).group()
                if ".entry" in head.split() or ".func" in head.split():
                    pos = self.function(mod, at)
                else:
                    end = t.index(";", at)
                    for v in self.variable(t[at:end], at):
                        if v.name not in mod.variables or v.init is not None:
                            mod.variables[v.name] = v
                    pos = end + 1
            else:
                self.fail(at, "unexpected text")

    def variable(self, stmt, pos):
        """`.visible .global .align 4 .b8 name[24] = {...}` -> [Var]."""
        space, typ, align, extern, vec = None, None, None, False, 1
        decl, _, init = stmt.partition("=")
        tokens = decl.split()
        i = 0
        while i < len(tokens) and tokens[i].startswith("."):
            w = tokens[i][1:]
            if w in SPACES:
                space = w
            elif w == "align":
                i += 1
                align = int(tokens[i])
            elif w in ("extern",):
                extern = True
            elif w in ("v2", "v4"):
                vec = int(w[1])
            elif w in TYPE_BYTES:
                typ = w
            elif w == "ptr":
                pass
            elif w in ("visible", "weak", "common", "attribute(.managed)", "managed"):
                pass
            else:
                self.fail(pos, f"unknown declaration word .{w}")
            i += 1
        if typ is None or space is None:
            self.fail(pos, "not a declaration")
        out = []
        for name in _split(" ".join(tokens[i:])):
            m = re.match(r"([\w$%]+)((?:\s*\[\s*\w*\s*\])*)$", name)
            if not m:
                self.fail(pos, "bad variable")
            n = vec
            for dim in re.findall(r"\[\s*(\w*)\s*\]", m.group(2)):
                n *= _int(dim) if dim else 0
            size = n * TYPE_BYTES[typ]
            v = Var(space, m.group(1), typ, align or TYPE_BYTES[typ], size, extern or (size == 0 and space == "shared"))
            if init.strip():
                v.init = self.initialiser(init.strip(), typ)
                if v.nbytes == 0:
                    v.nbytes = len(v.init) * TYPE_BYTES[typ]
            out.append(v)
        return out

    def initialiser(self, s, typ):
        if s.startswith("{"):
            out = []
            for x in _split(s[1 : s.rindex("}")]):
                out += self.initialiser(x, typ)
            return out
        m = re.match(r"generic\(([\w$%]+)\)$", s)
        if m:
            return [Sym(m.group(1))]
        imm = self.immediate(s)
        return [imm if imm is not None else Sym(s)]

    # ------------------------------------------------------------ functions
    def function(self, mod, pos):
        t = self.text
        head = re.compile(r"[^({;]*").match(t, pos)
        words = head.group().split()
        is_entry = ".entry" in words
        at = head.end()
        results = []
        if not is_entry and words[-1] == ".func":
            end = self.matching(at, "(", ")")
            results = self.formals(at, end)
            m = re.compile(r"\s*([\w$%]+)\s*").match(t, end + 1)
            name, at = m.group(1), m.end()
        else:
            name = words[-1]
        params = []
        if t[at] == "(":
            end = self.matching(at, "(", ")")
            params = self.formals(at, end)
            at = end + 1
        stop = re.compile(r"[;{]").search(t, at).start()
        directives = {}
        for m in re.finditer(r"\.(\w+)\s*([\d,\s]*)", t[at:stop]):
            directives[m.group(1)] = [int(x) for x in m.group(2).replace(",", " ").split()]
        fn = Function(name, is_entry, params, results, directives=directives)
        if t[stop] == ";":
            fn.defined = False
            mod.functions.setdefault(name, fn)
            return stop + 1
        end = self.matching(stop, "{", "}")
        self.body(fn, stop + 1, end)
        mod.functions[name] = fn
        return end + 1

    def formals(self, at, end):
        out = []
        for p in _split(self.text[at + 1 : end]):
            if p:
                if p.startswith(".reg"):
                    self.fail(at, "register parameters are not supported")
                p = re.sub(r"\.ptr(\s+\.(global|shared|const|local))?", " ", p)
                out += self.variable(p, at)
        return out

    def body(self, fn, pos, end):
        t = self.text
        top = scope = _Scope()
        for v in fn.params + fn.results:
            top.params[v.name] = v
            fn.variables[v.name] = v
        fn.items = []
        branches, n_unique, tables = [], 0, {}
        space = re.compile(r"\s*")
        while True:
            pos = space.match(t, pos).end()
            if pos >= end:
                break
            c = t[pos]
            if c == "{":
                scope = _Scope(scope)
                pos += 1
                continue
            if c == "}":
                scope = scope.parent
                pos += 1
                continue
            if c == ";":
                pos += 1
                continue
            if _DEBUG.match(t, pos):
                pos = t.index("\n", pos)
                continue
            m = _LABEL.match(t, pos)
            if m:
                nxt = space.match(t, m.end()).end()
                if t.startswith(".branchtargets", nxt):
                    semi = t.index(";", nxt)
                    tables[m.group(1)] = _split(t[nxt + len(".branchtargets") : semi])
                    pos = semi + 1
                    continue
                if t.startswith(".callprototype", nxt):
                    pos = t.index(";", nxt) + 1
                    continue
                label = Label(m.group(1), self.line(pos))
                scope.labels[label.name] = label
                fn.items.append(label)
                pos = m.end()
                continue
            semi = t.find(";", pos, end)
            if semi < 0:
                self.fail(pos, "missing ;")
            stmt = t[pos:semi].strip()
            if stmt.startswith(".reg"):
                self.registers(stmt, scope, pos)
            elif stmt.startswith(".pragma"):
                pass
            elif stmt.startswith("."):
                for v in self.variable(stmt, pos):
                    key = v.name
                    while key in fn.variables:
                        n_unique += 1
                        key = f"{v.name}#{n_unique}"
                    fn.variables[key] = v
                    scope.params[v.name] = v
            else:
                ins = self.instruction(stmt, scope, pos)
                fn.items.append(ins)
                if ins.parts[0] in ("bra", "brx"):
                    branches.append(ins)
            pos = semi + 1
        for ins in branches:
            if ins.parts[0] == "brx":
                names = tables[ins.operands[1].name]
            else:
                names = [ins.operands[0].name]
            ins.labels = []
            for name in names:
                label = ins.scope.find("labels", name)
                if label is None:
                    raise PtxSyntaxError(f"{ins}: no label {name}")
                ins.labels.append(label)

    def registers(self, stmt, scope, pos):
        m = re.match(r"\.reg\s+(?:\.(v[24])\s+)?\.(\w+)\s+(.*)$", stmt, re.S)
        if not m or m.group(1) or m.group(2) not in TYPE_BYTES:
            self.fail(pos, "unsupported register declaration")
        for name in _split(m.group(3)):
            b = re.match(r"([\w$%]+)\s*<\s*(\d+)\s*>$", name)
            if b:
                scope.banks[b.group(1)] = (m.group(2), int(b.group(2)))
            else:
                scope.regs[name] = Reg(name, m.group(2))

    def instruction(self, stmt, scope, pos):
        m = _INSTR.match(stmt)
        if not m:
            self.fail(pos, "not an instruction")
        neg, guard, op, rest = m.groups()
        g = None
        if guard:
            g = scope.reg(guard)
            if g is None:
                self.fail(pos, f"unknown predicate {guard}")
            g = Not(g) if neg else g
        line = self.line(pos)
        text = re.sub(r"\s+", " ", stmt)
        parts = op.split(".")
        ins = Instr(op, parts, [], g, line, text, scope)
        if parts[0] == "call":
            ins.operands = [self.call(rest, scope, pos)]
        else:
            ins.operands = [self.operand(x, scope, pos) for x in _split(rest)]
        return ins

    def call(self, rest, scope, pos):
        fields = _split(rest)
        results, args = [], []
        names = lambda f: [self.param(x, scope, pos) for x in _split(f[1:-1])]
        if fields[0].startswith("("):
            results = names(fields.pop(0))
        target = fields.pop(0)
        if fields and fields[0].startswith("("):
            args = names(fields.pop(0))
        return Call(results, target, args)

    def param(self, name, scope, pos):
        v = scope.find("params", name)
        if v is None:
            self.fail(pos, f"call operand {name} is not a .param variable")
        return v

    @staticmethod
    def immediate(s):
        m = re.match(r"([-+]?)0[fF]([0-9a-fA-F]{8})$", s)
        if m:
            bits = int(m.group(2), 16) ^ (0x80000000 if m.group(1) == "-" else 0)
            return Imm(struct.unpack("<f", struct.pack("<I", bits))[0], bits, 4)
        m = re.match(r"([-+]?)0[dD]([0-9a-fA-F]{16})$", s)
        if m:
            bits = int(m.group(2), 16) ^ ((1 << 63) if m.group(1) == "-" else 0)
            return Imm(struct.unpack("<d", struct.pack("<Q", bits))[0], bits, 8)
        if _INT.match(s):
            return Imm(_int(s))
        if _FLOAT.match(s):
            return Imm(float(s))
        return None

    def operand(self, s, scope, pos):
        s = s.strip()
        if s == "_":
            return SINK
        if s.startswith("{"):
            return Vec(tuple(self.operand(x, scope, pos) for x in _split(s[1:-1])))
        if s.startswith("["):
            return self.address(s[1:-1].strip(), scope, pos)
        if s.startswith("!"):
            return Not(self.operand(s[1:], scope, pos))
        if "|" in s:
            a, b = s.split("|")
            return Pair(self.operand(a, scope, pos), self.operand(b, scope, pos))
        imm = self.immediate(s)
        if imm is not None:
            return imm
        r = scope.reg(s)
        if r is not None:
            return r
        if s == "WARP_SZ":
            return Imm(32)
        if s.startswith("%"):
            return Special(s)
        m = re.match(r"([\w$]+)\s*(?:\+\s*(-?\w+))?$", s)
        if m:
            v = scope.find("params", m.group(1))
            return Sym(v if v is not None else m.group(1), _int(m.group(2)) if m.group(2) else 0)
        self.fail(pos, f"operand {s!r}")

    def address(self, s, scope, pos):
        m = re.match(r"([\w$%]+)\s*(?:\+\s*(-?\w+)|-\s*(\w+))?$", s)
        if not m:
            self.fail(pos, f"address [{s}]")
        off = _int(m.group(2)) if m.group(2) else -_int(m.group(3)) if m.group(3) else 0
        base = self.operand(m.group(1), scope, pos)
        if isinstance(base, Imm):
            return Mem(None, base.value + off)
        return Mem(base, off)


# ---------------------------------------------------------------- segments
TERMINATORS = {"bra", "brx", "ret", "exit", "call", "trap"}
WARP_SYNC = {"shfl", "vote", "match", "redux", "mma", "ldmatrix", "stmatrix", "elect", "movmatrix"}


def is_block_barrier(ins):
    return ins.parts[0] in ("bar", "barrier") and "warp" not in ins.parts and "cluster" not in ins.parts


def is_warp_sync(ins):
    return ins.parts[0] in WARP_SYNC or (ins.parts[0] == "bar" and "warp" in ins.parts)


def lower(fn, first_index):
    """Split a function into segments; segment order is program order."""
    segs, at_label = [], {}
    cur = None

    def start(line):
        nonlocal cur
        cur = Segment(first_index + len(segs), fn, line=line)
        segs.append(cur)

    start(0)
    for item in fn.items:
        if isinstance(item, Label):
            if cur.instrs or cur.sync or cur.term:
                start(item.line)
            at_label[item] = cur
            continue
        if cur.term is not None:
            start(item.line)
        if item.parts[0] in TERMINATORS or is_block_barrier(item):
            cur.term = item
        elif is_warp_sync(item):
            if cur.instrs or cur.sync:
                start(item.line)
            cur.sync = item
            if item.guard is not None:
                start(item.line)
        else:
            cur.instrs.append(item)
        if not cur.line:
            cur.line = item.line
    last = cur.term
    if last is None or last.guard is not None or last.parts[0] not in ("ret", "exit", "bra"):
        start(cur.line)
        cur.term = Instr("ret", ["ret"], [], None, cur.line, "(end of function)")
    for s in segs:
        if s.term is not None and s.term.parts[0] in ("bra", "brx"):
            s.targets = [at_label[x] for x in s.term.labels]
    fn.segments = segs
    return segs


def parse(text):
    return Parser(text).module()
