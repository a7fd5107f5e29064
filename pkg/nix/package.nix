# nix-build -E '(import <nixpkgs> { }).callPackage ./pkg/nix/package.nix { }'
{ lib, rustPlatform, stdenv }:

let
  description = import ./description.nix;
  cargo = lib.importTOML ../../Cargo.toml;
  built = "target/${stdenv.hostPlatform.rust.cargoShortTarget}/release";
in
rustPlatform.buildRustPackage {
  pname = "beanstalkd";
  inherit (cargo.package) version;
  src = lib.cleanSourceWith {
    src = lib.cleanSource ../..;
    filter = path: type: !(type == "directory" && baseNameOf path == "target");
  };
  cargoLock.lockFile = ../../Cargo.lock;

  # One by one, so that what beanstalkctl needs changes nothing in the daemon.
  cargoBuildFlags = [ "--package" "beanstalkd-server" ];
  postBuild = ''
    cargo build --offline --release --target ${stdenv.hostPlatform.rust.rustcTarget} --package beanstalkctl
  '';
  cargoTestFlags = [ "--package" "beanstalkd-server" "--lib" ];

  # A program for another machine than this one does not print its manual and completions here.
  installPhase = ''
    runHook preInstall
    make install-daemon install-ctl ${lib.optionalString stdenv.hostPlatform.isLinux "install-units"} \
      CARGO=true PREFIX=$out DAEMON=${built}/beanstalkd CTL=${built}/beanstalkctl \
      ${lib.optionalString (!stdenv.buildPlatform.canExecute stdenv.hostPlatform) "FOREIGN=yes"}
    runHook postInstall
  '';

  meta = {
    description = description.SUMMARY;
    homepage = cargo.workspace.package.repository;
    license = lib.getLicenseFromSpdxId description.LICENSE;
    mainProgram = "beanstalkd";
    platforms = lib.platforms.unix;
  };
}
