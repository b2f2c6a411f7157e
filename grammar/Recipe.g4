// The grammar of recipes. All decisions but one need a single token of look-ahead, so the parser
// does not backtrack.
//
// Some alternatives accept malformed input with an obvious meaning ("// error:").
// compiler/parse/Builder reports it with a fix-it and continues as if the fix-it had been applied.
// compiler/parse/ErrorStrategy reports all other errors. Numbers and strings are single tokens even
// if they are malformed; compiler/parse/Literals interprets them.
grammar Recipe;

// An '=' without a value. compiler/parse/Tokens recognises it by the tokens that follow.
tokens { ASSIGN_ALONE }

recipeFile : recipe EOF ;

// The argument of --set.
settingText : path assign value EOF ;

recipe : RECIPE name extendsClause? body ;

extendsClause : EXTENDS STRING (COMMA STRING)* ;

body : LBRACE item* RBRACE ;

item
  : letItem
  | entry
  | COMMA      // error: settings are separated by blanks
  | SEMICOLON  // error: likewise
  ;

letItem : LET name (assign value | ASSIGN_ALONE) ;

// A setting or a section.
entry : path tail ;

path : name (DOT name)* ;

tail
  : assign
    ( value body? // error with body: 'mixed_precision = bf16_mixed { ... }'
    | body        // error: 'ddp = { ... }'
    )
  | ASSIGN_ALONE // error: no value
  | literal      // error: no '='
  | label? body
  ;

label : name ;

assign
  : ASSIGN
  | COLON // error: '=' was meant
  ;

name : IDENT | RECIPE | EXTENDS ;

value : product ((PLUS | MINUS) product)* ;

product : unary ((STAR | SLASH) unary)* ;

unary : (PLUS | MINUS)* primary ;

primary : literal | name ;

literal : NUMBER | STRING | BAD_STRING | TRUE | FALSE | NONE | list | group ;

// error: missing and doubled commas
list : LBRACK (element | COMMA)* RBRACK ;

// Parentheses around one value, or a tuple.
group : LPAREN (element | COMMA)* RPAREN ;

// A value. It is a separate rule because the parser must decide only here: a sign after a value
// continues it, although an element whose comma is missing may also begin with a sign.
element : product ((PLUS | MINUS) product)* ;

RECIPE  : 'recipe' ;
EXTENDS : 'extends' ;
LET     : 'let' ;
TRUE    : 'true' ;
FALSE   : 'false' ;
NONE    : 'none' ;

LBRACE : '{' ;
RBRACE : '}' ;
LBRACK : '[' ;
RBRACK : ']' ;
LPAREN : '(' ;
RPAREN : ')' ;
ASSIGN : '=' ;
COLON  : ':' ;
COMMA  : ',' ;
SEMICOLON : ';' ;
DOT    : '.' ;
PLUS   : '+' ;
MINUS  : '-' ;
STAR   : '*' ;
SLASH  : '/' ;

IDENT : [a-zA-Z_] [a-zA-Z_0-9]* ;

// 14_336, 3e-4, 80GiB, 30min, and any other word that begins with a digit.
NUMBER : [0-9] ([eE] [+\-] [0-9] | [a-zA-Z_0-9.])* ;

STRING : '"' (~["\\\r\n] | '\\' ~[\r\n])* '"' ;
// A string without a closing quote on its line, or one in single quotes.
BAD_STRING : '"' (~["\\\r\n] | '\\' ~[\r\n])* '\\'? | '\'' (~['\\\r\n] | '\\' ~[\r\n])* '\''? ;

COMMENT       : '//' ~[\r\n]* -> channel(HIDDEN) ;
BLOCK_COMMENT : '/*' .*? '*/' -> channel(HIDDEN) ;
HASH_COMMENT  : '#' ~[\r\n]* -> channel(HIDDEN) ;
BLANK         : [ \t\r\n\uFEFF]+ -> skip ;
OTHER         : . ;
