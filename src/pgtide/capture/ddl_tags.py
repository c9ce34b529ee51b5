"""The command tag with which a parsed statement fires event triggers.

Follows CreateCommandTag() of the server, less the objects shared by all
databases, for which no event trigger fires.
"""

from __future__ import annotations

from typing import Any

from pglast import ast

# Nouns of command tags by object type; types that fire no event triggers are absent.
NOUNS = {
    "ACCESS_METHOD": "ACCESS METHOD",
    "AGGREGATE": "AGGREGATE",
    "ATTRIBUTE": "TYPE",
    "CAST": "CAST",
    "COLLATION": "COLLATION",
    "COLUMN": "TABLE",
    "CONVERSION": "CONVERSION",
    "DOMAIN": "DOMAIN",
    "DOMCONSTRAINT": "DOMAIN",
    "EXTENSION": "EXTENSION",
    "FDW": "FOREIGN DATA WRAPPER",
    "FOREIGN_SERVER": "SERVER",
    "FOREIGN_TABLE": "FOREIGN TABLE",
    "FUNCTION": "FUNCTION",
    "INDEX": "INDEX",
    "LANGUAGE": "LANGUAGE",
    "LARGEOBJECT": "LARGE OBJECT",
    "MATVIEW": "MATERIALIZED VIEW",
    "OPCLASS": "OPERATOR CLASS",
    "OPERATOR": "OPERATOR",
    "OPFAMILY": "OPERATOR FAMILY",
    "POLICY": "POLICY",
    "PROCEDURE": "PROCEDURE",
    "PUBLICATION": "PUBLICATION",
    "ROUTINE": "ROUTINE",
    "RULE": "RULE",
    "SCHEMA": "SCHEMA",
    "SEQUENCE": "SEQUENCE",
    "STATISTIC_EXT": "STATISTICS",
    "SUBSCRIPTION": "SUBSCRIPTION",
    "TABCONSTRAINT": "TABLE",
    "TABLE": "TABLE",
    "TRANSFORM": "TRANSFORM",
    "TRIGGER": "TRIGGER",
    "TSCONFIGURATION": "TEXT SEARCH CONFIGURATION",
    "TSDICTIONARY": "TEXT SEARCH DICTIONARY",
    "TSPARSER": "TEXT SEARCH PARSER",
    "TSTEMPLATE": "TEXT SEARCH TEMPLATE",
    "TYPE": "TYPE",
    "VIEW": "VIEW",
}

# Attribute that holds the object type, for statements whose tag depends on it.
TYPED = {
    "AlterFunctionStmt": ("ALTER", "objtype"),
    "AlterObjectDependsStmt": ("ALTER", "objectType"),
    "AlterObjectSchemaStmt": ("ALTER", "objectType"),
    "AlterOwnerStmt": ("ALTER", "objectType"),
    "AlterTableMoveAllStmt": ("ALTER", "objtype"),
    "AlterTableStmt": ("ALTER", "objtype"),
    "DefineStmt": ("CREATE", "kind"),
    "DropStmt": ("DROP", "removeType"),
}

# Tag and, where the event reports them in these words, the attributes that name the object.
FIXED: dict[str, tuple[str, tuple[str, ...]]] = {
    "AlterCollationStmt": ("ALTER COLLATION", ("collname",)),
    "AlterDefaultPrivilegesStmt": ("ALTER DEFAULT PRIVILEGES", ()),
    "AlterDomainStmt": ("ALTER DOMAIN", ("typeName",)),
    "AlterEnumStmt": ("ALTER TYPE", ("typeName",)),
    "AlterExtensionContentsStmt": ("ALTER EXTENSION", ()),
    "AlterExtensionStmt": ("ALTER EXTENSION", ("extname",)),
    "AlterFdwStmt": ("ALTER FOREIGN DATA WRAPPER", ("fdwname",)),
    "AlterForeignServerStmt": ("ALTER SERVER", ("servername",)),
    "AlterOpFamilyStmt": ("ALTER OPERATOR FAMILY", ()),
    "AlterOperatorStmt": ("ALTER OPERATOR", ()),
    "AlterPolicyStmt": ("ALTER POLICY", ("table", "policy_name")),
    "AlterPublicationStmt": ("ALTER PUBLICATION", ()),
    "AlterSeqStmt": ("ALTER SEQUENCE", ("sequence",)),
    "AlterStatsStmt": ("ALTER STATISTICS", ("defnames",)),
    "AlterSubscriptionStmt": ("ALTER SUBSCRIPTION", ("subname",)),
    "AlterTSConfigurationStmt": ("ALTER TEXT SEARCH CONFIGURATION", ()),
    "AlterTSDictionaryStmt": ("ALTER TEXT SEARCH DICTIONARY", ("dictname",)),
    "AlterTypeStmt": ("ALTER TYPE", ("typeName",)),
    "AlterUserMappingStmt": ("ALTER USER MAPPING", ("servername",)),
    "CompositeTypeStmt": ("CREATE TYPE", ("typevar",)),
    "CreateAmStmt": ("CREATE ACCESS METHOD", ("amname",)),
    "CreateCastStmt": ("CREATE CAST", ()),
    "CreateConversionStmt": ("CREATE CONVERSION", ("conversion_name",)),
    "CreateDomainStmt": ("CREATE DOMAIN", ("domainname",)),
    "CreateEnumStmt": ("CREATE TYPE", ("typeName",)),
    "CreateExtensionStmt": ("CREATE EXTENSION", ("extname",)),
    "CreateFdwStmt": ("CREATE FOREIGN DATA WRAPPER", ("fdwname",)),
    "CreateForeignServerStmt": ("CREATE SERVER", ("servername",)),
    "CreateForeignTableStmt": ("CREATE FOREIGN TABLE", ("base",)),
    "CreateOpClassStmt": ("CREATE OPERATOR CLASS", ("opclassname",)),
    "CreateOpFamilyStmt": ("CREATE OPERATOR FAMILY", ("opfamilyname",)),
    "CreatePLangStmt": ("CREATE LANGUAGE", ("plname",)),
    "CreatePolicyStmt": ("CREATE POLICY", ("table", "policy_name")),
    "CreatePublicationStmt": ("CREATE PUBLICATION", ("pubname",)),
    "CreateRangeStmt": ("CREATE TYPE", ("typeName",)),
    "CreateSchemaStmt": ("CREATE SCHEMA", ("schemaname",)),
    "CreateSeqStmt": ("CREATE SEQUENCE", ("sequence",)),
    "CreateStatsStmt": ("CREATE STATISTICS", ("defnames",)),
    "CreateStmt": ("CREATE TABLE", ("relation",)),
    "CreateSubscriptionStmt": ("CREATE SUBSCRIPTION", ("subname",)),
    "CreateTransformStmt": ("CREATE TRANSFORM", ()),
    "CreateTrigStmt": ("CREATE TRIGGER", ("relation", "trigname")),
    "CreateUserMappingStmt": ("CREATE USER MAPPING", ("servername",)),
    "DropOwnedStmt": ("DROP OWNED", ()),
    "DropSubscriptionStmt": ("DROP SUBSCRIPTION", ("subname",)),
    "DropUserMappingStmt": ("DROP USER MAPPING", ("servername",)),
    "ImportForeignSchemaStmt": ("IMPORT FOREIGN SCHEMA", ()),
    "IndexStmt": ("CREATE INDEX", ("relation", "idxname")),
    "RefreshMatViewStmt": ("REFRESH MATERIALIZED VIEW", ("relation",)),
    "ReindexStmt": ("REINDEX", ()),
    "RuleStmt": ("CREATE RULE", ("relation", "rulename")),
    "ViewStmt": ("CREATE VIEW", ("view",)),
}


def tag_of(node: Any) -> str | None:
    """The command tag with which event triggers fire for this statement; None if they do not."""
    kind = type(node).__name__
    if kind in FIXED:
        return FIXED[kind][0]
    if kind in TYPED:
        verb, attribute = TYPED[kind]
        return _tag(verb, getattr(node, attribute))
    match node:
        case ast.RenameStmt():
            column = type_name(node.renameType) == "COLUMN"
            return _tag("ALTER", node.relationType if column else node.renameType)
        case ast.CreateTableAsStmt():
            matview = type_name(node.objtype) == "MATVIEW"
            return "CREATE MATERIALIZED VIEW" if matview else "CREATE TABLE AS"
        case ast.CreateFunctionStmt():
            return "CREATE PROCEDURE" if node.is_procedure else "CREATE FUNCTION"
        case ast.SelectStmt():
            return "SELECT INTO" if into_table(node) else None
        case ast.GrantStmt():
            shared = type_name(node.objtype) in ("DATABASE", "TABLESPACE", "PARAMETER_ACL")
            return None if shared else "GRANT" if node.is_grant else "REVOKE"
        case ast.CommentStmt() | ast.SecLabelStmt():
            verb = "COMMENT" if isinstance(node, ast.CommentStmt) else "SECURITY LABEL"
            return verb if type_name(node.objtype) in NOUNS else None
    return None


def into_table(node: Any) -> Any:
    """The table of SELECT … INTO; in a set operation it is written in the leftmost SELECT."""
    while node.larg is not None:
        node = node.larg
    return node.intoClause.rel if node.intoClause is not None else None


def type_name(value: Any) -> str:
    return str(value.name).removeprefix("OBJECT_")


def _tag(verb: str, value: Any) -> str | None:
    noun = NOUNS.get(type_name(value))
    return f"{verb} {noun}" if noun else None
