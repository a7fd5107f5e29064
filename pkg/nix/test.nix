# What can be said of these files without nixpkgs: they evaluate, with stubs of what they use of it.
#
#     nix-instantiate --eval --strict pkg/nix/test.nix      # "passed", or what is wrong
let
  description = import ./description.nix;
  lib = {
    cleanSource = path: path;
    cleanSourceWith = cleaned: cleaned;
    genAttrs = names: make:
      builtins.listToAttrs (map (name: { inherit name; value = make name; }) names);
    getLicenseFromSpdxId = id: { spdxId = id; };
    importTOML = path: builtins.fromTOML (builtins.readFile path);
    literalExpression = text: text;
    mkEnableOption = text: { };
    mkIf = condition: value: if condition then value else { };
    mkOption = option: option;
    optionalString = condition: text: if condition then text else "";
    platforms.unix = [ ];
    toInt = builtins.fromJSON;
    types = { package = "package"; port = "port"; str = "str"; };
  };
  platform = {
    isLinux = true;
    rust = { cargoShortTarget = "here"; rustcTarget = "here"; };
  };
  pkgs = {
    callPackage = path: more: import path ({
      inherit lib;
      rustPlatform.buildRustPackage = package: package;
      stdenv = { hostPlatform = platform; buildPlatform.canExecute = _: true; };
    } // more);
  };
  flake = (import ../../flake.nix).outputs {
    self = flake;
    nixpkgs = { inherit lib; legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" ] (_: pkgs); };
  };
  package = flake.packages.x86_64-linux.default;
  module = config: import flake.nixosModules.default { inherit lib pkgs config; };
  options = (module { }).options.services.beanstalkd-rust;
  set = (module {
    services.beanstalkd-rust = {
      enable = true;
      inherit package;
      address = options.address.default;
      port = options.port.default;
      flags = "-b ${description.STATE}";
    };
  }).config;
  has = text: part: builtins.length (builtins.split part text) > 1;
  checks = {
    "the version is that of Cargo.toml" =
      package.version == (lib.importTOML ../../Cargo.toml).package.version;
    "all values are there" = builtins.isString (builtins.toJSON (removeAttrs package [ "src" ]));
    "what was built is no source" =
      package.src.filter "/src/target.rs" "regular" && !package.src.filter "/x/target" "directory";
    "both programs are installed, with what they print" =
      !has package.installPhase "FOREIGN" && has package.installPhase "install-daemon" && has package.installPhase "install-ctl";
    "every option has a type and a text" =
      builtins.all (name: name == "enable" || options.${name} ? type && options.${name} ? description)
        (builtins.attrNames options);
    "there is the user" = set.users.users.${description.OWNER}.home == description.STATE;
    "it listens on loopback" = set.systemd.services.beanstalkd.environment == {
      BEANSTALKD_LISTEN_ADDR = "127.0.0.1";
      BEANSTALKD_LISTEN_PORT = "11300";
      BEANSTALKD_EXTRA = "-b /var/lib/beanstalkd";
    };
  };
  wrong = builtins.filter (name: !checks.${name}) (builtins.attrNames checks);
in
if wrong == [ ] then "passed" else throw "not so: ${builtins.concatStringsSep "; " wrong}"
