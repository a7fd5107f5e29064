# nix build; nix run . -- -l 127.0.0.1; nix shell . -c beanstalkctl tubes
{
  description = "A simple, fast work queue: a drop-in replacement for beanstalkd";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" ];
      each = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: rec {
        beanstalkd = pkgs.callPackage ./pkg/nix/package.nix { };
        default = beanstalkd;
      });
      checks = self.packages;
      nixosModules.default = ./pkg/nix/module.nix;
    };
}
