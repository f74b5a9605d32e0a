"""The commands take llama.cpp's flags, or refuse them by name."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import flags as flags_tool
from adapters import write_lora
from llama_cpp_eagle3 import Eagle3Error
from llama_cpp_eagle3.cli.flag_names import in_flags
from llama_cpp_eagle3.cli.load_model import load_model
from llama_cpp_eagle3.cli.parser import Parser
from llama_cpp_eagle3.cli.sampling_flags import sampling_of
from llama_cpp_eagle3.cli.server_options import FLAGS as SERVE
from llama_cpp_eagle3.cli.server_options import add_server_flags as add_server
from llama_cpp_eagle3.cli.server_options import defaults_of
from llama_cpp_eagle3.cli.speculative_simple import FLAGS as SIMPLE
from llama_cpp_eagle3.cli.speculative_simple import add_arguments
from llama_cpp_eagle3.config.eagle3_options import OPTIONS
from llama_cpp_eagle3.config.flag import Flag
from llama_cpp_eagle3.config.sampling_options import SAMPLING_OPTIONS, types_and_defaults
from loading import load, path_of, take

ROOT = Path(__file__).parents[2]
COMMANDS = {"speculative-simple": SIMPLE, "serve": SERVE}


def parse(*args: Any, server: bool = False) -> Any:
    parser = Parser("prog")
    (add_server if server else add_arguments)(parser)
    return parser.parse_args([str(arg) for arg in args])


def fails(capsys: Any, *args: Any, server: bool = False) -> str:
    """Return the error about arguments that cannot be parsed."""
    with pytest.raises(SystemExit) as info:
        parse(*args, server=server)
    assert info.value.code == 2
    return str(capsys.readouterr().err).splitlines()[-1]


def test_document_is_current() -> None:
    known = json.loads(flags_tool.KNOWN.read_text())
    assert flags_tool.DOCUMENT.read_text() == flags_tool.document(known), "run python tools/flags.py"
    assert flags_tool.KNOWN.read_text().count("LLAMA_ARG_") > 150


def test_help_is_understood() -> None:
    text = (
        "----- common params -----\n\n"
        "-t,    --threads N                      number of threads (default: -1)\n"
        "                                        (env: LLAMA_ARG_THREADS)\n"
        "--spec-draft-ngl, -ngld, --gpu-layers-draft N\n"
        "                                        layers\n"
        "--perf, --no-perf                       timings\n"
    )
    assert flags_tool.parse_help(text) == [
        {"section": "common", "names": ["-t", "--threads"], "value": "N", "env": "LLAMA_ARG_THREADS"},
        {"section": "common", "names": ["--spec-draft-ngl", "-ngld", "--gpu-layers-draft"], "value": "N", "env": ""},
        {"section": "common", "names": ["--perf", "--no-perf"], "value": "", "env": ""},
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_llama_cpp_is_known(command: str) -> None:
    """Every flag is known by all its names, with its variable, and with a value where llama.cpp's has one."""
    ours: dict[str, Flag] = {}
    for flags in COMMANDS[command].values():
        for flag in flags:
            for name in (*flag.names, *flag.no):
                assert name not in ours, name
                ours[name] = flag
    document = json.loads((ROOT / "tools" / "llama_flags.json").read_text())
    known = document[command]
    assert len(known) > 150
    for entry in known:
        if entry["names"][0] in ("-h", "--version"):
            continue
        assert set(entry["names"]) <= set(ours), entry
        flag = ours[entry["names"][0]]
        assert {id(ours[name]) for name in entry["names"]} == {id(flag)}, entry
        assert bool(flag.metavar) == bool(entry["value"]), entry
        assert flag.env == entry["env"] or (flag.why_not and not flag.env) or entry["env"] == "HF_TOKEN", entry
    theirs = {name for tool in COMMANDS for entry in document[tool] for name in entry["names"]}
    for name, flag in ours.items():
        assert flag.is_ours or flag.no or name in theirs, f"{name} is not llama.cpp's"


def test_whole_flags_only(capsys: Any) -> None:
    args = parse("-dev", "CPU", "-nkvo", "-c", 5, "--top_k", 3, "-ngl", "auto", "-ts", "3,1", "-n", "-1")
    assert (args.devices, args.offload_kqv, args.n_ctx, args.top_k) == (["CPU"], False, 5, 3)
    assert (args.n_gpu_layers, args.tensor_split, args.predict) == (-1, [3.0, 1.0], -1)
    assert "unknown flag -cnv" in fails(capsys, "-cnv")
    assert "unknown flag --ctx, did you mean --ctx-size?" in fails(capsys, "--ctx", 5)
    assert "unknown flag -c5" in fails(capsys, "-c5")
    assert "unknown flag -devCPU" in fails(capsys, "-devCPU")
    assert "unrecognized arguments: x" in fails(capsys, "x")
    assert "-c: expected a value" in fails(capsys, "-c")


def test_values_may_look_like_flags() -> None:
    args = parse("-p", "-c", "--grammar", "--root", "-l", "15-2.5", "-l", "7+inf", "--ctx-size=9")
    assert (args.prompt, args.grammar, args.n_ctx) == ("-c", "--root", 9)
    assert args.logit_bias == [(15, -2.5), (7, float("inf"))]
    assert parse("-fa").flash_attn == parse("-fa", "1").flash_attn == "on"
    assert parse("-fa", "--no-host").flash_attn == "on"
    assert parse("-fa", "disabled").flash_attn == "off"
    assert parse("-fa", "-1").flash_attn == "auto"


@pytest.mark.parametrize("args", [("-c", "--"), ("-c=--",), ("--n_predict", "--")])
def test_two_dashes_are_no_value(args: tuple[str, ...], capsys: Any) -> None:
    """argparse alone would give the flag an empty list."""
    assert "expected a value after it, found --" in fails(capsys, "-p", "x", *args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--control-vector", "x"], "--control-vector is not possible here: llama_cpp has no reader"),
        (["-C", "ff"], "-C is not possible here: llama_cpp gives no access to ggml's thread pools"),
        (["--perf"], "--perf is not possible here"),
        (["--draft-max", "4"], "it is called --spec-draft-n-max now"),
        (["-cmoed"], "has no experts"),
        (["--spec-type", "ngram-cache"], "found 'ngram-cache': drafts come from EAGLE-3 heads"),
        (["-fit", "on"], "only off is possible here, found 'on'"),
        (["-np", "2"], "only 1 is possible here, found '2': there is one prompt"),
        (["-sm", "tensor"], "expected one of none, layer, row"),
        (["-ctk", "q4_k"], "expected one of f32, f16"),
        (["-ot", "x"], "expected PATTERN=BUFFER"),
        (["--override-kv", "a=int:x"], "a: 'x' is no int"),
        (["-l", "5"], "expected TOKEN_ID+BIAS"),
        (["--lora-scaled", "x"], "expected FNAME:SCALE"),
        (["--lora", "a\nb"], r"expected things with commas between them, found 'a\nb': new-line character"),
        (["--lora", ""], "expected something, or things with commas between them, found ''"),
        (["--samplers", "top_k;nonsense"], "there is no sampler 'nonsense'"),
        (["--sampling-seq", "kz"], "there is no sampler 'z'"),
        (["-jf", "nowhere.json"], "'nowhere.json' cannot be read"),
        (["-ts", "a"], "expected numbers"),
        (["-j", "[" * 100_000], "expected JSON: maximum recursion depth exceeded"),
        (["-jf", os.devnull], f"'{os.devnull}': expected JSON: Expecting value"),
    ],
    ids=" ".join,
)
def test_refused_by_name(args: list[str], message: str, capsys: Any) -> None:
    assert message in fails(capsys, *args)


def test_what_is_so_anyway_is_accepted() -> None:
    """A smoke test: it asks only that no error comes."""
    parse("--no-perf", "-fit", "0", "-np", 1, "--keep", 0, "--no-log-prefix", "--spec-draft-backend-sampling")
    parse("-cb", "--no-context-shift", "--cache-reuse", 0, "-no-ag", "--warmup", server=True)


def test_server_flags(capsys: Any) -> None:
    args = parse("-np", 2, "-no-kvu", "--no-webui", "-cram", 7, "-to", 5, "-rea", "off", "--top-k", 4, server=True)
    assert (args.n_parallel, args.kv_unified, args.ui, args.prefix_cache_bytes, args.timeout) == (
        2,
        False,
        False,
        7 << 20,
        5.0,
    )
    assert (args.reasoning, args.top_k) == ("off", 4)
    assert "--mmproj-url is not possible here" in fails(capsys, "--mmproj-url", "x", server=True)
    assert "-nocb is not possible here" in fails(capsys, "-nocb", server=True)
    for flag in ("--slot-save-path", "--cache-disk"):
        assert "expected a path, found ''" in fails(capsys, flag, "", server=True)
    args = parse("--mirostat-lr", 0.3, "-l", "5-1", "--samplers", "temp;top-k", "--ignore-eos", server=True)
    assert defaults_of(args) == {
        "mirostat_eta": 0.3,
        "logit_bias": [[5, -1.0]],
        "samplers": ["temperature", "top_k"],
        "ignore_eos": True,
    }


def test_environment(monkeypatch: Any, capsys: Any) -> None:
    for name, value in {
        "LLAMA_ARG_CTX_SIZE": "77",
        "LLAMA_ARG_FLASH_ATTN": "enabled\r",
        "LLAMA_ARG_CPU_MOE": "true",
        "LLAMA_ARG_NO_HOST": "0",
        "LLAMA_ARG_KV_OFFLOAD": "off",
        "LLAMA_ARG_NO_REPACK": "1",
        "LLAMA_ARG_PERF": "0",
        "LLAMA_ARG_TOP_K": "3",
        "LLAMA_ARG_CPU_KERNELS": "off",
        "LLAMA_ARG_HOST": "of another command",
    }.items():
        monkeypatch.setenv(name, value)
    args = parse("--top-k", 5)
    assert (args.n_ctx, args.flash_attn, args.cpu_moe, args.no_host) == (77, "on", True, False)
    assert (args.offload_kqv, args.repack, args.cpu_kernels, args.top_k) == (False, False, "off", 5)
    assert "LLAMA_ARG_TOP_K is set, the flag on the command line overrides it" in capsys.readouterr().err
    monkeypatch.setenv("LLAMA_ARG_PERF", "1")
    assert "--perf is not possible here" in fails(capsys)
    monkeypatch.setenv("LLAMA_ARG_PERF", "x")
    assert "LLAMA_ARG_PERF: expected on or off, found 'x'" in fails(capsys)
    monkeypatch.delenv("LLAMA_ARG_PERF")
    for value in ("many", "", "1.5", "\ufeff4"):
        monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", value)
        assert f"LLAMA_ARG_CTX_SIZE: expected a whole number, found {value!r}" in fails(capsys)
    parse("-c", 5)  # the value is not read
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    monkeypatch.setenv("LLAMA_ARG_CHAT_TEMPLATE_FILE", "")
    assert "LLAMA_ARG_CHAT_TEMPLATE_FILE: expected a file, found an empty text" in fails(capsys, server=True)
    monkeypatch.delenv("LLAMA_ARG_CHAT_TEMPLATE_FILE")
    monkeypatch.setenv("LLAMA_ARG_CONT_BATCHING", "0")
    assert "--no-cont-batching is not possible here" in fails(capsys, server=True)
    monkeypatch.setenv("LLAMA_ARG_CONT_BATCHING", "1")
    assert parse(server=True).host == "of another command"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("LLAMA_ARG_CTXSIZE", ": did you mean LLAMA_ARG_CTX_SIZE?"),
        ("LLAMA_ARG_NO_KV_OFLOAD", ": did you mean LLAMA_ARG_NO_KV_OFFLOAD?"),
        ("LLAMA_ARG_QQQQQQ", ""),
        ("LLAMA_ARG_PORT", None),  # of another command
        ("LLAMA_ARG_NO_PERF", None),
    ],
)
def test_misspelt_variables_are_named(name: str, hint: str | None, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv(name, "1")
    parse()
    said = capsys.readouterr().err
    assert (
        said.rstrip().endswith(f"{name} is set, and no flag has such a variable{hint}")
        if hint is not None
        else not said
    )


def test_empty_variables_are_llama_servers(monkeypatch: Any, capsys: Any) -> None:
    """It takes an empty template for none, and an empty list of names too."""
    for name in ("LLAMA_ARG_CHAT_TEMPLATE", "LLAMA_ARG_ALIAS"):
        monkeypatch.setenv(name, "")
    args = parse(server=True)
    assert not args.chat_template
    assert not args.alias
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("flag", "kind"), [("-c", "whole number"), ("--temp", "number"), ("-cram", "whole number")])
def test_numbers_are_asked_for_in_our_words(flag: str, kind: str, capsys: Any) -> None:
    assert f"expected a {kind}, found 'many'" in fails(capsys, flag, "many", server=True)


def test_sampling() -> None:
    s = sampling_of(parse())
    assert (s.temperature, s.top_k, s.samplers[0], s.seed) == (0.0, 40, "penalties", 0xFFFFFFFF)
    s = sampling_of(
        parse(
            *("--temp", 0.7, "--samplers", "xtc;temperature", "--repeat-last-n", 7, "--mirostat", 2, "-l", "3+1.5"),
            *("--mirostat-ent", 4, "--dry-sequence-breaker", "a", "--dry-sequence-breaker", "\\n", "--dynatemp-exp", 2),
            *("--top-nsigma", 1.5, "--typical", 0.9, "-s", 5, "--adaptive-decay", 0.5, "--xtc-probability", 0.25),
        )
    )
    assert (s.temperature, s.samplers, s.repeat_last_n, s.mirostat_mode) == (0.7, ["xtc", "temperature"], 7, 2)
    assert (s.mirostat_tau, s.dry_sequence_breakers, s.dynatemp_exponent) == (4.0, ["a", "\n"], 2.0)
    assert (s.top_n_sigma, s.typical_p, s.seed, s.adaptive_decay, s.xtc_probability) == (1.5, 0.9, 5, 0.5, 0.25)
    assert s.logit_bias == {3: 1.5}
    assert sampling_of(parse("--sampler-seq", "kt")).samplers == ["top_k", "temperature"]
    assert 'root ::= "a"' in (sampling_of(parse("--grammar", 'root ::= "a"')).grammar or "")
    assert "root ::=" in (sampling_of(parse("-j", '{"type": "boolean"}')).grammar or "")


def test_help_tells_the_defaults() -> None:
    """Numbers in the help are the defaults without the flag."""
    defaults = {name: default for name, (_, default) in types_and_defaults().items()}
    flags = [(option.flag, defaults[name]) for name, option in SAMPLING_OPTIONS.items()]
    flags += [(option.flag, option.default) for option in OPTIONS.values()]
    n_told = 0
    for flag, default in flags:
        if flag is None or default is flag.default is None:
            continue
        if told := re.search(r"\(default: (-?[\d.]+)(?=[,)])", flag.help):
            assert float(told[1]) == (default if flag.default is None else flag.default), flag.names
            n_told += 1
    assert n_told > 30


def text_of(*args: Any) -> tuple[str, Any]:
    """Return the text that flags give, and the model's parameters."""
    parsed = parse("-t", 1, "-c", 64, *args)
    with closing(load_model(parsed, parsed.draft_model_path)) as llm:
        stream = llm.generate([1, 2, 3], sampling=sampling_of(parsed))
        tokens = [next(stream) for _ in range(12)]
        stream.close()
        params = llm.model_params
        return str(tokens), {name: getattr(params, name) for name in ("load_mode", "use_extra_bufts", "no_host")}


def test_placement_leaves_the_text(tiny_target: Any, tiny_head: Any) -> None:
    pair = ("-m", path_of(tiny_target), "-md", path_of(tiny_head))
    plain, params = text_of(*pair)
    assert params == {"load_mode": -1, "use_extra_bufts": True, "no_host": False}
    for flags in (
        *(("-dev", "none"), ("-dev", "CPU"), ("-ot", r"blk\.0.*=CPU,output=CPU"), ("-ncffn", 1, "-ncmoe", 2, "-cmoe")),
        *(("-td", 1, "-devd", "none", "-nkvo", "--no-op-offload", "--check-tensors"), ("-sm", "none", "-mg", 0)),
        ("--rope-scaling", "linear", "--rope-scale", 1, "--no-swa-full", "-ctkd", "f32"),
    ):
        assert text_of(*pair, *flags)[0] == plain, flags
    assert text_of(*pair, "-lm", "none", "-nr", "--no-host")[1] == {
        "load_mode": 0,
        "use_extra_bufts": False,
        "no_host": True,
    }
    assert text_of(*pair, "--rope-freq-base", 10)[0] != plain
    assert text_of(*pair, "--override-kv", "llama.rope.freq_base=float:10")[0] != plain


def test_cpu_kernels(tiny_target: Any, capsys: Any) -> None:
    for flags, expected in (((), False), (("--cpu-kernels", "off"), True)):
        with closing(load_model(parse("-t", 1, "-c", 64, "-m", path_of(tiny_target), *flags), None)) as llm:
            assert ("cpu_kernels is off" in llm.loaded.where) == expected
    assert "--cpu-kernels: expected one of auto, on, off, found 'maybe'" in fails(capsys, "--cpu-kernels", "maybe")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "Nowhere0"}, "devices: there is no device 'Nowhere0', there are CPU"),
        ({"override_tensor": [("x", "Nowhere")]}, "there is no buffer type 'Nowhere', there are CPU"),
        ({"override_tensor": [("(?<=x", "CPU")]}, "target.gguf"),
        ({"lora": ["nowhere.gguf"]}, "'nowhere.gguf' is missing"),
        ({"model_params": {"vocab_only": True}}, "expected some of check_tensors"),
        ({"draft_n_threads": 999}, "expected draft_n_threads in 1..512"),
    ],
    ids=str,
)
def test_model_options_refused(options: dict[str, Any], message: str, tiny_target: Any) -> None:
    with pytest.raises((ValueError, Eagle3Error)) as info:
        load(tiny_target, **options)
    assert message in str(info.value)


def test_several_adapters(tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    """Two adapters at half their scale are one; the text changes with them, with and without a head."""

    lora = write_lora(tmp_path / "lora.gguf", tiny_target)
    texts = []
    for adapters in ([], [lora], [(lora, 0.5), (lora, 0.5)]):
        with closing(load(tiny_target, tiny_head, lora=adapters)) as llm:
            texts.append(take(llm, [1, 2, 3], 20))
    assert texts[0] != texts[1] == texts[2]
    with pytest.raises(Eagle3Error, match=r"general.type': expected 'adapter' of a LoRA adapter"):
        load(tiny_target, lora=[path_of(tiny_target)])


def test_log_file(tiny_target: Any, tiny_head: Any, tmp_path: Path) -> None:
    import logging

    logger = logging.getLogger("llama_cpp_eagle3")
    before = (list(logger.handlers), logger.level)
    try:
        text_of("-m", path_of(tiny_target), "-md", path_of(tiny_head), "--log-file", tmp_path / "log", "-v")
    finally:
        for handler in logger.handlers[len(before[0]) :]:
            handler.close()
        logger.handlers[:], level = before
        logger.setLevel(level)
    assert "INFO llama_cpp_eagle3: target on CPU" in (tmp_path / "log").read_text()


def test_list_devices(capsys: Any) -> None:
    from llama_cpp_eagle3.cli import main

    for command in ("speculative-simple", "serve", "chat", "calibrate"):
        assert main([command, "--list-devices"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("Available devices:\n  ")
        assert " MiB free)" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("draft_sources names 'simple', but a head is given", "--spec-type names draft-simple, but a head is given"),
        ("draft_model_path: name 'eagle3' or 'mtp'", "-md: name draft-eagle3 or draft-mtp"),
        ("n_ctx=512 and n_batch=-1, n_ubatch=5.", "-c 512 and -b -1, -ub 5."),
        ("use kv_unified=True, not kv_unified=False", "use -kvu, not -no-kvu"),
        ("use flash_attn=True too", "use -fa on too"),
        ("devices: none of the devices", "-dev: none of the devices"),
        ("'/lora/n_ctx/draft_type.gguf' (draft_type)", "'/lora/n_ctx/draft_type.gguf' (--spec-draft-type)"),
        ("draft_n_ctx and my_n_ctx", "-cd and my_n_ctx"),
        ("(general.architecture 'clip'), found architecture 'eagle3'",) * 2,
    ],
)
def test_errors_in_flags(text: str, expected: str) -> None:
    assert in_flags(text) == expected


def test_errors_of_a_command_name_flags(tiny_target: Any, tiny_head: Any, capsys: Any) -> None:
    from llama_cpp_eagle3.cli import main

    command = ["speculative-simple", "-p", "a", "-n", "2", "-t", "1", "-m", path_of(tiny_target)]
    for flags, message in (
        (["-b", "0"], "-b >= 1 and -ub >= 1, found -c"),
        (["-md", path_of(tiny_head), "--spec-type", "draft-simple"], "name draft-eagle3, alone or with draft-mtp"),
        (["-md", path_of(tiny_head), "--tree-tokens", "0"], "found --tree-depth 4, --tree-tokens 0"),
        (["-md", path_of(tiny_head), "-cd", "64"], "-cd is for small models"),
        (["-dev", "Nowhere0"], "-dev: there is no device 'Nowhere0'"),
    ):
        assert main([*command, *flags]) == 2
        assert message in capsys.readouterr().err


def test_a_head_that_is_named_and_not_given(tiny_target: Any, capsys: Any) -> None:
    from llama_cpp_eagle3.cli import main

    command = ["speculative-simple", "-p", "a", "-n", "2", "-t", "1", "-m", path_of(tiny_target), "--spec-type"]
    missing = "--spec-type names draft-eagle3, but no head is given (-md): "
    assert main([*command, "draft-eagle3"]) == 0
    assert missing + "nothing drafts" in capsys.readouterr().err
    assert main([*command, "draft-eagle3,ngram-simple"]) == 0
    assert missing + "ngram-simple alone may draft" in capsys.readouterr().err


def test_nothing_drafts(tiny_target: Any, capsys: Any) -> None:
    """--spec-type none leaves the options of drafts out; without it n-grams draft at most as many tokens."""
    from llama_cpp_eagle3.cli import main

    command = ["speculative-simple", "-p", "a", "-n", "4", "-t", "1", "-m", path_of(tiny_target)]
    for flags, said in (
        ([], "n_draft   = auto"),
        (["--spec-draft-n-max", "4"], "n_draft   = auto"),
        (["--spec-draft-n-max", "4", "--tree-tokens", "9", "--spec-type", "none"], "n_draft   = 0"),
    ):
        assert main([*command, *flags]) == 0
        assert said in capsys.readouterr().err, flags
