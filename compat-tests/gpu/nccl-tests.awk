# Reads what a program of nccl-tests (v2.19.6) printed.
#
#   awk -f nccl-tests.awk -v sizes=N [-v in_place=unchecked] OUTPUT     says what is wrong and ends with 1, or counts the rows
#   awk -f nccl-tests.awk -v speed=NAME OUTPUT                          one line for the table of times
#
# The columns come from the header line and are counted from the right: a row has one word fewer than the header when
# its operator is the empty string, as hypercube prints it.
# sizes: how many sizes were asked for; every type, operator and root has a row for each.
# in_place: "unchecked" for the programs that never check it (alltoall, alltoallv, sendrecv), whose last column is N/A.

function from_right(name, occurrence,   i) {
  for (i = 1; i <= NF; i++) if ($i == name && --occurrence == 0) return NF - i
  return -1
}
/^# +size +count +type +redop +root / {
  columns = NF - 1
  out_time = from_right("time", 1); out_bus = from_right("busbw", 1)
  out_wrong = from_right("#wrong", 1); in_wrong = from_right("#wrong", 2)
  next
}
/^ *[0-9]+ +[0-9]+ +[a-z]/ {
  rows++
  # Without an operator the root comes right after the type.
  if (!columns || (NF != columns && !(NF == columns - 1 && $4 ~ /^-?[0-9]+$/))) { broken++; if (!first) first = $0; next }
  types[$3] = 1
  checked_in_place = $(NF - in_wrong) == "0" || ($(NF - in_wrong) == "N/A" && in_place == "unchecked")
  if ($(NF - out_wrong) != "0" || !checked_in_place) { wrong++; if (!first) first = $0 }
  if ($1 > 0 && $1 <= 4096 && (!small || $(NF - out_time) + 0 < small)) small = $(NF - out_time) + 0
  if ($(NF - out_bus) + 0 > bus) bus = $(NF - out_bus) + 0
  if ($1 + 0 >= size) { size = $1 + 0; last = $(NF - out_time) }
}
/^# Out of bounds values/ { concluded = $0 }
END {
  if (speed) {
    printf "%-34s %10s %12.0f %14s %10s\n", speed, small ? small : "-", size, last, bus + 0
    exit 0
  }
  if (broken) { print broken " of " rows " rows do not fit the header, first: " first; exit 1 }
  if (wrong) { print wrong " of " rows " rows are wrong or unchecked, first: " first; exit 1 }
  if (!rows) { print "no row in the output"; exit 1 }
  if (rows % sizes) { print rows " rows are not a multiple of the " sizes " sizes asked for"; exit 1 }
  if (concluded !~ /: 0 OK/) { print "the program's own count: " (concluded ? concluded : "not printed"); exit 1 }
  kinds = 0
  for (type in types) kinds++
  print rows " rows" (kinds > 1 ? ", " kinds " types" : "")
}
