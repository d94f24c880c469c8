# README.md and docs/: one page, links that lead somewhere, files, commands and flags that there are. Sourced by test_cli.sh.

root=$tests/..
documents=("$root"/README.md "$root"/docs/*.md)

check "README.md is one page" test "$(wc -c <"$root/README.md")" -le 7168

# Of each link the file, relative to the document that has it.
for document in "${documents[@]}"; do
  grep -oE '\]\([^)]+\)' "$document" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^https*:' | sort -u >links
  while IFS= read -r link; do
    check "$(basename "$document"): the link $link" test -e "$(dirname "$document")/${link:-$(basename "$document")}"
  done <links
done

# Every source file and every function that design.md names exists.
find "$root"/{src,cuda,tests,models,main.cpp} -type f | sed 's|^|/|' >sources
grep -oE '`[A-Za-z0-9_/]+\.(cpp|h|cu|cuh|py|sh)`' "$root/docs/design.md" | tr -d '\`' | sort -u >named
check "design.md: names files" test "$(wc -l <named)" -ge 50
while IFS= read -r file; do
  [[ $file == *NAME* ]] || check "design.md: the file $file" grep -q "/$file\$" sources
done <named
find "$root"/{src,cuda,main.cpp} -type f -exec cat {} + >all_code
grep -oE '`[A-Za-z0-9_:]+\(\)`' "$root/docs/design.md" | tr -d '\`()' | sed 's/.*:://' | sort -u >named
while IFS= read -r function; do
  check "design.md: the function $function" grep -qE "(^|[^A-Za-z0-9_])$function(<[^>]*>)?\\(" all_code
done <named

# Every command has a line in the manual page, and every flag a line in its command's help.
run_ completion man
sed -n '/^\.SH COMMANDS/,/^\.SH [^C]/s/^\\fB\([a-z ]*\)\\fR.*/\1/p' out | sort -u >commands
check "the manual page lists commands" test "$(wc -l <commands)" -ge 15
: >flags
while IFS= read -r command; do
  # shellcheck disable=SC2086
  run_ $command --help
  grep -oE -- '--[a-z][a-z-]*' out >>flags
done <commands
printf '%s\n' help version >>commands
# Flags of other programs.
printf -- '--%s\n' include spec local-dir dir allow-requantize tensor-type imatrix pure array wrap wd run_test chooser passages signal requeue retries open-mode time >>flags

# The word behind "dsv32" is a command, or the two behind it are.
for document in "${documents[@]}"; do
  name=$(basename "$document")
  grep -oE 'dsv32 [a-z]+( [a-z]+)?' "$document" | sed 's/^dsv32 //' | sort -u >named
  while read -r word second; do
    check "$name: dsv32 $word $second" grep -qx -e "$word" -e "$word $second" commands
  done <named
  grep -oE -- '(^|[^a-zA-Z-])--[a-z][a-z_-]*' "$document" | grep -oE -- '--.*' | sort -u >named
  while IFS= read -r flag; do
    check "$name: the flag $flag" grep -qx -e "$flag" flags
  done <named
done
