# Checks that includes point one way: base <- gguf <- backend <- weights <- context <- {prefix, model} <- engine <- cli <-
# main.cpp; prefix and model do not include each other. text includes gguf, constrain includes text. cuda includes base, gguf and
# backend. No file in src includes a CUDA header; only engine includes the factory of cuda/. The rooms of cli have an
# order too: terminal <- options <- warm <- chat <- batch <- inspect <- main.cpp. All output goes through cli/terminal/streams,
# which checks that it arrived.
BEGIN {
    n = split("base gguf text constrain backend weights context prefix model engine cli/terminal cli/options cli/warm cli/chat " \
              "cli/batch cli/inspect main", order, " ")
    for (i = 1; i <= n; ++i) rank[order[i]] = i
    allowed["text"] = "base gguf text"
    allowed["constrain"] = "base text constrain"
    allowed["backend"] = "base gguf backend"
    allowed["cuda"] = "base gguf backend cuda"
    allowed["prefix"] = "base backend context prefix"
    allowed["model"] = "base gguf backend weights context model"
}
function folder_of(path) {
    sub(/^\.\//, "", path)
    sub(/^src\//, "", path)
    if (path ~ /^main\.cpp$/) return "main"
    if (path ~ /^cli\/[a-z]+\//) return "cli/" room_of(path)
    sub(/\/.*/, "", path)
    return path
}
function room_of(path) {
    split(path, folders, "/")
    return folders[2]
}
FNR == 1 { here = folder_of(FILENAME) }
/"cuda\/cuda_backend.h"/ && here == "engine" { next }
/^[ \t]*#[ \t]*include[ \t]*[<"]cuda/ && here != "cuda" { complain("a CUDA header outside cuda/") }
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    there = folder_of(part[2])
    if (part[2] !~ /\//) { complain("include by folder: \"" here "/" part[2] "\""); next }
    if (here in allowed) ok = index(" " allowed[here] " ", " " there " ") > 0
    else ok = (there in rank) && rank[there] <= rank[here]
    if (!ok) complain(here " must not include " there)
}
/(^|[^a-z_.>])(f?printf|f?puts|putchar|fwrite|cout|cerr)[ \t]*[(<]/ && !/^[ \t]*\/\// { complain("output past cli/streams") }
function complain(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, $0 > "/dev/stderr"; bad = 1 }
END { if (bad) exit 1; print "layers: includes point one way" }
