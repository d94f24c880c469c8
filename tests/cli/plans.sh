# `inspect plan` for people without the file, or without the machine. Sourced by test_cli.sh.

plan() { run_ inspect plan "$@"; }

# A file's name in the formats that it is published in; the plan says of what it is, and where.
expect "plans: a published mix" 0 inspect plan --type Q4_K_M --on 2x141G+256G
check "plans: the model, its size and the machine are named" \
  grep -aqE '^model: the 671B model in Q4_K_M, without a file, 40[345]\.[0-9] GB; machine: 2x141G\+256G$' out
check "plans: the last line but two is a speed" \
  grep -aqE '^expected, not measured: [0-9]+ t/s of an answer at 4,096 tokens of context, [0-9],[0-9]{3} t/s of a prompt of 32,768$' out
check "plans: with the rates behind it" \
  grep -aqE '^    at these rates: [0-9],[0-9]{3} GB/s on H200 and .* [0-9]+ GB/s in host memory, assumed of 30 threads; most weights are Q4_K$' out
plan --synthetic --on 2x141G+256G && cp out default
plan --synthetic --type q4_k_m --on 2x141G+256G
check "plans: Q4_K_M is the default" same out default
plan --type Q2_K --on 2x141G+256G --json
check "plans: Q2_K is a mix" grep -aqE '"weight_bytes":24[45][0-9]{9},' out
check "plans: the speed in JSON" grep -aqE '"expected":\{"decode_tokens_per_second":[0-9.]+,"prefill_tokens_per_second":[0-9.]+,' out
plan --type Q2_K-pure --on 2x141G+256G --json
check "plans: one format for all" grep -aqE '"weight_bytes":221[0-9]{9},' out
timeout 20 "$lab" kernels --type Q4_K >out
check "kernels of a format, of a Hopper" grep -aqxE 'Q4_K +hopper +rows 8 +rows 8 +wide 40 +cuBLASLt' out
check "kernels of a format, of another GPU" grep -aqxE 'Q4_K +generic +rows 8 +rows 8 +columns 16 +cuBLASLt' out
check "kernels: uses of an expert together" grep -aqxE 'uses +hopper +1 +8 +16 +[0-9]+' out
check "kernels: uses of an expert together, generic" grep -aqxE 'uses +generic +1 +8 +8 +128' out
usage_error "plans: no such format" inspect plan --type Q9_K --on 24G+256G
check "plans: mixes are named" has err "Q4_K_M"
usage_error "plans: a file and a format" inspect plan "${m[@]}" --type Q4_K_M

# The computed rows of docs/models.md are what plans say.
for row in "3xH200+128G Q4_K_M" "2xH200+256G Q4_K_M" "4xH100+128G Q4_K_M" "H100+256G Q3_K_S" "RTX3090+256G Q2_K" \
  "RTX4090+384G Q4_K_M" "2xRTX4090+384G Q4_K_M" "RTX5090+512G Q4_K_M" "4xRTX3090+768G Q4_K_M" "RTXPRO6000+512G Q4_K_M"; do
  plan --on "${row% *}" --type "${row#* }"
  said=$(sed -nE 's/^expected, not measured: ([0-9.]+) t.s of an .*, ([0-9,]+) t.s of a prompt.*/| \1 | \2 |/p' out | tr , ' ')
  grep -aF "| \`${row% *}\` | ${row#* }," "$tests/../docs/models.md" >written
  check "plans: docs/models.md's $row: $said" has written "${said:-no speed}"
done

# What was typed is the machine's name; one GPU needs no number; measured GPUs have their own.
for spec in 24G+256G 1x24G+256G h100+256G 2xH200+24G+256G 0+768G; do
  expect "plans: $spec" 0 inspect plan --type Q2_K --on "$spec"
  check "plans: $spec: it is named" has out "machine: $spec"
done
plan --type Q2_K --on H100+256G --json && cp out named
plan --type Q2_K --on 1x80G+256G --json
check "plans: an H100 has what it reports, not 80 GiB" test "$(grep -o '"n_bytes_free":[0-9]*' named | head -1)" != "$(grep -o '"n_bytes_free":[0-9]*' out | head -1)"
for spec in 24G 2x141G H200 2x141G+2xH100; do
  usage_error_with_hint "plans: $spec: no host memory" inspect plan --type Q2_K --on "$spec"
  check "plans: $spec: asks for it" has err "--on $spec+256G"
done
for spec in 2x24+256 24+256G 2x24G+256 2xH100+24; do
  usage_error_with_hint "plans: $spec: no unit" inspect plan --type Q2_K --on "$spec"
done
run_ inspect plan --type Q2_K --on 2x24+256
check "plans: what is meant" has err "say --on 2x24G+256G for GiB"
for bad in "--host-mem 64" "--gpu-mem 24"; do
  # shellcheck disable=SC2086
  usage_error "plans: $bad: no unit" inspect plan --type Q2_K --on H100+256G $bad
done
for spec in "" + 0 24G+ +256G 0x24G+256G 2xB9+256G 24G+lots 24G,256G 9999x24G+256G 99999999999999999999x24G+1G; do
  usage_error "plans: '$spec' is no machine" inspect plan --type Q2_K --on "$spec"
done

# GPUs by name, as people write it; the help has a table of them.
plan --type Q2_K --on 2xRTX4090+384G && sed 's/machine: .*//' out >named
plan --type Q2_K --on "2x rtx 4090 + 384G" && sed 's/machine: .*//' out >spaced
check "plans: spaces and capitals do not count" same named spaced
plan --type Q2_K --on "2x4090+384G" && sed 's/machine: .*//' out >spaced
check "plans: a number that is a GPU's name is the GPU" same named spaced
check "plans: the GPU's rates are named, and that it was never run" has out "767 GB/s on RTX4090 (never run) and"
run_ inspect plan --help
check "plans: the help knows the GPUs" grep -aqE '^  RTX4090 +24564 +1008 +31\.5 +165\.2 +323$' out
run_ completion man
check "plans: so does the manual page" grep -aqE '^  RTXPRO6000 +97887 ' out
usage_error "plans: a GPU that is not known" inspect plan --type Q2_K --on RTX9090+256G
check "plans: those that are" has err "RTXPRO6000"

# Threads and rate of the host are what is said.
plan --type Q2_K --on RTX4090+256G -t 8
check "plans: eight threads" has out "59 GB/s in host memory, assumed of 8 threads"
check "plans: few threads share with the link" has out "of which 1.7 GiB go over the link"
plan --type Q2_K --on RTX4090+256G
check "plans: many threads do not" lacks out "go over the link"
plan --type Q2_K --on RTX4090+256G --host-rate 50
check "plans: a rate that was measured" has out "46 GB/s in host memory, by --host-rate;"
usage_error "plans: no rate" inspect plan --type Q2_K --on RTX4090+256G --host-rate 0

# What does not fit is refused in a line, and the largest type that fits is named.
expect "plans: too little host memory" 4 inspect plan --type Q4_K_S --on 24G+256G
check "plans: what lacks" has err "not enough memory for the experts of 57 layers in host memory"
check "plans: the largest type that fits" grep -aqE '^hint: the largest type that fits is IQ3_XS, 27[0-9]\.[0-9] GB' err
expect "plans: it does fit" 0 inspect plan --type IQ3_XS --on 24G+256G
expect "plans: nothing fits" 4 inspect plan --type Q4_K_S --on RTX4090+64G
check "plans: that is said, and no flag that does not help" grep -aqxE 'hint: no type fits: the smallest, IQ1_S, has 13[0-9]\.[0-9] GB' err
expect "plans: nothing fits beside a flag" 4 inspect plan --type Q4_K_S --on RTX4090+256G --host-mem 64G
check "plans: the flag is named" grep -aq 'hint: no type fits: .*; a larger --host-mem allows more' err

# With several GPUs the fastest way is taken, and the next best one named.
plan --type Q4_K_M --on 8xH100+512G
check "plans: eight H100 are a team" has out "a team of 8 GPUs"
check "plans: its speed" grep -aqE '^expected, not measured: 1[78][0-9] t/s of an answer at .*, 19,[0-9]{3} t/s of a prompt' out
check "plans: and of the next best" grep -aqE '^    next best: layers on 5 of the GPUs, 86 t/s of an answer, 10,[0-9]{3} t/s of a prompt, context 163,840 tokens$' out
plan --type Q4_K_M --on 8xH100+512G --json
check "plans: the next best in JSON" has out '"runner_up":{"gpus":5,"split":"layers","context":163840,'
plan --type Q4_K_M --on H100+512G --json
check "plans: none" has out '"runner_up":null'

# The demo is planned for a machine that is not there only when somebody says so.
mkdir -p demo_only/models && cp "$demo" demo_only/models/demo.gguf
(cd demo_only && "$dsv32" inspect plan --on 2x141G+256G </dev/null >../out 2>../err)
check "plans: not for the demo unasked, but for the default of --type" has out "model: the 671B model in Q4_K_M, without a file"
(cd demo_only && "$dsv32" inspect plan --on 2x141G+256G -m models/demo.gguf </dev/null >../out 2>../err)
check "plans: for the demo when asked" has out "model: models/demo.gguf, 17.9 MB; machine: 2x141G+256G"
check "plans: no speed of a shape that was not timed" has out "expected speed: not known"
(cd demo_only && "$dsv32" inspect plan </dev/null >../out 2>../err)
check "plans: here, of the only model" has out "model: models/demo.gguf, 17.9 MB; machine: this one"
