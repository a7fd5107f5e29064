# imports = [ ./module.nix ];      # or nixosModules.default of the flake
# services.beanstalkd-rust = { enable = true; flags = "-b /var/lib/beanstalkd"; };
{ config, lib, pkgs, ... }:

let
  description = import ./description.nix;
  cfg = config.services.beanstalkd-rust;
in
{
  options.services.beanstalkd-rust = {
    enable = lib.mkEnableOption "the work queue beanstalkd";
    package = lib.mkOption {
      type = lib.types.package;
      default = pkgs.callPackage ./package.nix { };
      defaultText = lib.literalExpression "pkgs.callPackage ./package.nix { }";
      description = "The daemon and beanstalkctl.";
    };
    address = lib.mkOption {
      type = lib.types.str;
      default = description.ADDRESS;
      description = "Where it listens. There is no login.";
    };
    port = lib.mkOption {
      type = lib.types.port;
      default = lib.toInt description.PORT;
      description = "The port.";
    };
    flags = lib.mkOption {
      type = lib.types.str;
      default = "";
      description = "More flags: see beanstalkd(1).";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    users.groups.${description.OWNER} = { };
    users.users.${description.OWNER} = {
      isSystemUser = true;
      group = description.OWNER;
      home = description.STATE;
    };
    # The unit of the package; this adds to it.
    systemd.packages = [ cfg.package ];
    systemd.services.beanstalkd = {
      wantedBy = [ "multi-user.target" ];
      environment = {
        BEANSTALKD_LISTEN_ADDR = cfg.address;
        BEANSTALKD_LISTEN_PORT = toString cfg.port;
        BEANSTALKD_EXTRA = cfg.flags;
      };
    };
  };
}
