# What pkg/description says, as a set: each of its lines NAME='VALUE'.
let
  lines = builtins.filter builtins.isString (builtins.split "\n" (builtins.readFile ../description));
  words = builtins.filter (word: word != null) (map (builtins.match "([A-Z_]+)='(.*)'") lines);
in
builtins.listToAttrs (map (word: { name = builtins.head word; value = builtins.elemAt word 1; }) words)
